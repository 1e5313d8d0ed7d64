package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

// slowly makes the pods of a Deployment take a second to get Ready, so that a node can be seen without one.
var slowly = controlplane.Template(map[string]string{controlplane.ReadyAfter: "1"})

// sentTo declares that the balancer of a Service sends to the nodes of a test, but those that a further selector leaves out.
func sentTo(env *controlplane.Env, but string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Annotations = map[string]string{"safedrain.dev/nodes": controlplane.PoolLabel + "=" + env.Namespace + but}
	}
}

// strategy sets how a Deployment rolls.
func strategy(surge, unavailable int) func(*appsv1.Deployment) {
	s, u := intstr.FromInt(surge), intstr.FromInt(unavailable)
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
	}
}

// hazardsOf audits a namespace and lists the codes of Warn and graver, sorted.
func hazardsOf(env *controlplane.Env) []guard.Code {
	env.Helper()
	stdout, stderr, code := run(env, "audit", "-n", env.Namespace, "-o", "json")
	var report guard.CoverageReport
	if err := json.Unmarshal([]byte(stdout), &report); code != 0 || err != nil {
		env.Fatalf("audit: exit code %d, %v\n%s", code, err, stderr)
	}
	var out []guard.Code
	for i := range report.Services {
		for _, f := range report.Services[i].Findings {
			if f.Severity.AtLeast(guard.Warn) {
				out = append(out, f.Code)
			}
		}
	}
	slices.Sort(out)
	return out
}

func wantHazards(env *controlplane.Env, want ...guard.Code) {
	env.Helper()
	slices.Sort(want)
	if got := hazardsOf(env); !slices.Equal(got, want) {
		env.Fatalf("audit finds %v, want %v", got, want)
	}
}

// applyFixes runs what audit --fix prints, as somebody does who pastes it into a shell.
func applyFixes(env *controlplane.Env) string {
	env.Helper()
	script, stderr, code := run(env, "audit", "-n", env.Namespace, "--fix")
	if code != 0 {
		env.Fatalf("audit --fix: exit code %d\n%s", code, stderr)
	}
	cmd := exec.CommandContext(env.Context(), "sh", "-e")
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+filepath.Dir(kubectlBin)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		env.Fatalf("%v\n%s\n%s", err, script, out)
	}
	return script
}

// rollTo rolls a workload to a new image and returns the nodes that were without a Ready endpoint of its Service at some
// moment, though they had one before.
func rollTo(env *controlplane.Env, workload, image string) []string {
	env.Helper()
	ctx, cancel := context.WithCancel(env.Context())
	defer cancel()
	_, app, _ := strings.Cut(workload, "/")
	slicesOf := env.Client.DiscoveryV1().EndpointSlices(env.Namespace)
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + app}
	list, err := slicesOf.List(ctx, options)
	must(env, err)
	if len(list.Items) != 1 {
		env.Fatalf("%d slices of %s: no single one tells the whole truth", len(list.Items), app)
	}
	covered := readyOn(&list.Items[0])
	options.ResourceVersion = list.ResourceVersion
	w, err := slicesOf.Watch(ctx, options)
	must(env, err)
	emptied := make(chan map[string]bool)
	go func() {
		out := map[string]bool{}
		for ev := range w.ResultChan() {
			if s, ok := ev.Object.(*discoveryv1.EndpointSlice); ok && ev.Type == watch.Modified {
				now := readyOn(s)
				for node := range covered {
					out[node] = out[node] || !now[node]
				}
			}
		}
		emptied <- out
	}()
	kubectl(env, "set", "image", "-n", env.Namespace, workload, "main="+image)
	kubectl(env, "rollout", "status", "-n", env.Namespace, workload, "--timeout=110s")
	env.Wait("the endpoints to be those of the last rollout", func(ctx context.Context) (bool, string, error) {
		pods, err := env.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=" + app})
		if err != nil {
			return false, "", err
		}
		latest, err := slicesOf.List(ctx, options)
		if err != nil || len(latest.Items) != 1 {
			return false, "no single slice", err
		}
		return len(latest.Items[0].Endpoints) == len(pods.Items), fmt.Sprintf("%d endpoints, %d pods", len(latest.Items[0].Endpoints), len(pods.Items)), nil
	})
	w.Stop()
	var out []string
	for node, was := range <-emptied {
		if was {
			out = append(out, node)
		}
	}
	slices.Sort(out)
	return out
}

// isUnschedulable reports whether the scheduler found no node for a pod.
func isUnschedulable(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable })
}

func readyOn(s *discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.NodeName != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
			out[*e.NodeName] = true
		}
	}
	return out
}

// TestAuditFixDeadlock: pods that keep each other off their nodes, on as many nodes: a rollout hangs; the patches let it go
// on, and the next one leaves no node empty.
func TestAuditFixDeadlock(t *testing.T) {
	t.Parallel()
	env := cluster.Env(t)
	env.Nodes(3)
	env.Service("web", sentTo(env, ""))
	env.Deployment("web", 3, apartByNode, slowly)
	env.EndpointsReady("web", 3)
	wantHazards(env, guard.RolloutDeadlock, guard.RolloutEmptiesNode)
	kubectl(env, "set", "image", "-n", env.Namespace, "deployment/web", "main=example.invalid/app:2")
	env.Wait("the new pod to find no node", func(ctx context.Context) (bool, string, error) {
		pods, err := env.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err != nil || len(pods.Items) == 0 {
			return false, "no pod is Pending", err
		}
		return isUnschedulable(&pods.Items[0]), "not Unschedulable", nil
	})
	_, _, code := program{path: kubectlBin, kubeconfig: kubeconfig}.run(t, "rollout", "status", "-n", env.Namespace, "deployment/web", "--timeout=3s")
	if code == 0 {
		t.Fatal("the rollout ended, which was said to hang")
	}
	script := applyFixes(env)
	kubectl(t, "rollout", "status", "-n", env.Namespace, "deployment/web", "--timeout=110s")
	env.EndpointsReady("web", 3)
	if got := hazardsOf(env); len(got) > 0 {
		t.Fatalf("after the patches audit finds %v\n%s", got, script)
	}
	if emptied := rollTo(env, "deployment/web", "example.invalid/app:3"); len(emptied) > 0 {
		t.Errorf("the rollout emptied %v", emptied)
	}
}

// TestAuditFixKustomize: a spread that counts a tainted node and a rollout that empties every node once; the Component of
// -o yaml mends both.
func TestAuditFixKustomize(t *testing.T) {
	t.Parallel()
	env := cluster.Env(t)
	nodes := env.Nodes(3)
	env.Nodes(1, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		n.Labels["gpu"] = "true"
	})
	env.Service("web", sentTo(env, ",!gpu"))
	env.Deployment("web", 3, spreadEvenly, strategy(0, 1), slowly)
	env.EndpointsReady("web", 3)
	wantHazards(env, guard.SpreadCountsTainted, guard.RolloutEmptiesNode)
	if emptied := rollTo(env, "deployment/web", "example.invalid/app:2"); len(emptied) != len(nodes) {
		t.Errorf("the rollout emptied %v, which was said to empty each of %v", emptied, nodes)
	}
	env.EndpointsReady("web", 3)

	patches, stderr, code := run(t, "audit", "-n", env.Namespace, "--fix", "-o", "yaml")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"base/web.yaml":           kubectl(t, "get", "deployment", "web", "-n", env.Namespace, "-o", "yaml"),
		"base/kustomization.yaml": "resources: [web.yaml]\ncomponents: [../fix]\n",
		"fix/kustomization.yaml":  patches,
	} {
		must(env, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(env, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	kubectl(t, "replace", "-k", filepath.Join(dir, "base"))
	kubectl(t, "rollout", "status", "-n", env.Namespace, "deployment/web", "--timeout=110s")
	env.EndpointsReady("web", 3)
	if got := hazardsOf(env); len(got) > 0 {
		t.Fatalf("after the patches audit finds %v\n%s", got, patches)
	}
	if emptied := rollTo(env, "deployment/web", "example.invalid/app:3"); len(emptied) > 0 {
		t.Errorf("the rollout emptied %v", emptied)
	}
}

// TestAuditFixOthers: a DaemonSet that takes its pod away first, an autoscaler below the floor, a pin to one node, a Service
// that half of the cluster cannot reach.
func TestAuditFixOthers(t *testing.T) {
	t.Parallel()
	env := cluster.Env(t)
	nodes := env.Nodes(3, settledNode)
	edgeDaemons(env, "edge")
	env.Service("edge", sentTo(env, ""))
	env.PodsReady("edge", 3)
	env.EndpointsReady("edge", 3)

	env.Service("web", sentTo(env, ""))
	env.Deployment("web", 3, spreadEvenly, strategy(1, 0), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TopologySpreadConstraints[0].MatchLabelKeys = []string{appsv1.DefaultDeploymentUniqueLabelKey}
		honor := corev1.NodeInclusionPolicyHonor
		d.Spec.Template.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = &honor
	})
	_, err := env.Client.AutoscalingV2().HorizontalPodAutoscalers(env.Namespace).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: 2,
		},
	}, metav1.CreateOptions{})
	must(env, err)

	env.Service("pinned", sentTo(env, ""))
	env.Deployment("pinned", 2, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname] = nodes[0]
	})

	env.Service("inside", func(s *corev1.Service) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.InternalTrafficPolicy = corev1.ServiceTypeClusterIP, "", &local
	})
	env.Deployment("inside", 1)
	env.EndpointsReady("inside", 1)
	env.EndpointsReady("pinned", 2)

	found := hazardsOf(env)
	for _, code := range []guard.Code{guard.RolloutEmptiesNode, guard.AutoscalerBelowFloor, guard.PlacementPinned, guard.SpreadMissing, guard.InternalLosesLocal} {
		if !slices.Contains(found, code) {
			t.Errorf("audit does not find %s: %v", code, found)
		}
	}
	script := applyFixes(env)
	for _, workload := range []string{"daemonset/edge", "deployment/pinned"} {
		kubectl(t, "rollout", "status", "-n", env.Namespace, workload, "--timeout=110s")
	}
	for _, app := range []string{"edge", "web", "pinned"} {
		env.EndpointsReady(app, 3)
	}
	if got := hazardsOf(env); len(got) > 0 {
		t.Fatalf("after the patches audit finds %v\n%s", got, script)
	}
	if emptied := rollTo(env, "daemonset/edge", "example.invalid/app:2"); len(emptied) > 0 {
		t.Errorf("the rollout of the DaemonSet emptied %v", emptied)
	}
}

// edgeDaemons makes a DaemonSet on the nodes of a test, whose pods take a second to get Ready.
func edgeDaemons(env *controlplane.Env, name string) {
	env.Helper()
	labels := map[string]string{controlplane.AppLabel: name}
	_, err := env.Client.AppsV1().DaemonSets(env.Namespace).Create(env.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{controlplane.ReadyAfter: "1"}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{controlplane.PoolLabel: env.Namespace},
					Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	must(env, err)
}
