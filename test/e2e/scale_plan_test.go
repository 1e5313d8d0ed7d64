package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	reader "github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

// settledNode makes a node one that has been Ready for an hour, so that it counts for a floor.
func settledNode(n *corev1.Node) {
	n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
}

// spreadEvenly keeps the pods of a Deployment apart by node.
func spreadEvenly(d *appsv1.Deployment) {
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
	}}
}

// scalePlan runs `plan --scale` and reads its document.
func scalePlan(t testing.TB, p program, namespace, asked string, want int) *guard.ScalePlan {
	t.Helper()
	stdout, stderr, code := p.run(t, "plan", "-n", namespace, "--scale", asked, "-o", "json")
	if code != want {
		t.Fatalf("plan --scale %s: exit code %d, want %d\n%s%s", asked, code, want, stdout, stderr)
	}
	var plan guard.ScalePlan
	if err := json.Unmarshal([]byte(stdout), &plan); err != nil {
		t.Fatalf("plan --scale %s leaves no plan: %v\n%s", asked, err, stdout)
	}
	return &plan
}

// TestPlanScale asks the real cluster, as somebody who may only read, what kubectl scale then does: four pods on three nodes.
func TestPlanScale(t *testing.T) {
	t.Parallel()
	env := cluster.Env(t)
	env.Nodes(3, settledNode)
	env.Service("web")
	pods := env.Deployment("web", 4, spreadEvenly)
	env.EndpointsReady("web", 4)
	_, err := env.Client.AutoscalingV2().HorizontalPodAutoscalers(env.Namespace).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: 9,
		},
	}, metav1.CreateOptions{})
	must(env, err)
	_, mayRead := grant(env, drainRole(t, "--read-only"))

	below := scalePlan(t, mayRead, env.Namespace, "deploy/web=2", 3)
	if below.Floor.Value != 3 || len(below.Floor.Nodes) != 3 || below.Finding(guard.BelowFloor) == nil || below.Clamped() != 3 {
		t.Errorf("floor %+v, findings %+v", below.Floor, below.Findings)
	}
	if below.Finding(guard.AutoscalerBelowFloor) == nil {
		t.Error("the autoscaler's minReplicas of 1 is below the floor and not reported")
	}
	plan := scalePlan(t, mayRead, env.Namespace, "deployment.apps/web=3", 0)
	on := map[string]int{}
	for i := range pods {
		on[pods[i].Spec.NodeName]++
	}
	for _, v := range plan.Victims {
		if on[v.Node] != 2 {
			t.Errorf("%s on %s may go, where only one pod is", v.Name, v.Node)
		}
	}
	kubectl(t, "scale", "-n", env.Namespace, "deploy/web", "--replicas=3")
	left := env.PodsReady("web", 3)
	if n := nodesOf(left); len(n) != 3 {
		t.Errorf("kubectl scale left pods on %v", n)
	}
	must(env, agree(plan, gonePods(pods, left)))

	// A deletion cost turns the choice: the plan refuses what would empty a node avoidably, and says which pods to keep.
	kubectl(t, "annotate", "-n", env.Namespace, "service/web", "safedrain.dev/floor=2")
	kubectl(t, "scale", "-n", env.Namespace, "deploy/web", "--replicas=4")
	left = env.PodsReady("web", 4)
	env.EndpointsReady("web", 4)
	lone := loneOn(left)
	kubectl(t, "annotate", "-n", env.Namespace, "pod/"+lone.Name, corev1.PodDeletionCost+"=-7")
	refused := scalePlan(t, mayRead, env.Namespace, "deploy/web=3", 3)
	if f := refused.Finding(guard.ScaleEmptiesNode); f == nil || f.Severity != guard.Block || !slices.Equal(f.Nodes, []string{lone.Spec.NodeName}) {
		t.Errorf("%s alone on %s is to go: %+v", lone.Name, lone.Spec.NodeName, refused.Services)
	}
	if len(refused.Keepers) != 3 {
		t.Errorf("keepers %+v, want one a node", refused.Keepers)
	}
	for _, k := range refused.Keepers {
		kubectl(t, "annotate", "--overwrite", "-n", env.Namespace, "pod/"+k.Name, corev1.PodDeletionCost+"="+guard.KeeperCost)
	}
	scalePlan(t, mayRead, env.Namespace, "deploy/web=3", 0)
	kubectl(t, "scale", "-n", env.Namespace, "deploy/web", "--replicas=3")
	if n := nodesOf(env.PodsReady("web", 3)); len(n) != 3 {
		t.Errorf("kubectl scale left pods on %v", n)
	}
}

// TestPlanScaleMissing: what is not there is an error that says so.
func TestPlanScaleMissing(t *testing.T) {
	t.Parallel()
	env := cluster.Env(t)
	stdout, stderr, code := run(t, "plan", "-n", env.Namespace, "--scale", "sts/none=1")
	if want := fmt.Sprintf("error: statefulset %q not found in namespace %q", "none", env.Namespace); code != 1 || stdout != "" || !strings.HasPrefix(stderr, want) {
		t.Errorf("exit code %d, want 1 and %q\n%s%s", code, want, stdout, stderr)
	}
}

func nodesOf(pods []corev1.Pod) map[string]int {
	out := map[string]int{}
	for i := range pods {
		out[pods[i].Spec.NodeName]++
	}
	return out
}

// loneOn returns a pod that is alone on its node.
func loneOn(pods []corev1.Pod) *corev1.Pod {
	on := nodesOf(pods)
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return on[p.Spec.NodeName] == 1 })
	return &pods[i]
}

// gonePods lists the pods that are not among those that are left.
func gonePods(pods, left []corev1.Pod) []types.UID {
	var gone []types.UID
	for i := range pods {
		if !slices.ContainsFunc(left, func(p corev1.Pod) bool { return p.UID == pods[i].UID }) {
			gone = append(gone, pods[i].UID)
		}
	}
	return gone
}

// agree compares a plan with the pods that went: those that were said to go, and none that was said to stay.
func agree(plan *guard.ScalePlan, gone []types.UID) error {
	if said := plan.Workload.Pods.Before - plan.Workload.Pods.After; said != len(gone) {
		return fmt.Errorf("%d pods were said to go, %d went", said, len(gone))
	}
	said := map[types.UID]guard.Goes{}
	for _, v := range plan.Victims {
		said[v.UID] = v.Goes
		if v.Goes == guard.Will && !slices.Contains(gone, v.UID) {
			return fmt.Errorf("%s was said to go and stayed", v.Name)
		}
	}
	for _, u := range gone {
		if said[u] == "" {
			return fmt.Errorf("%s went and was said to stay", u)
		}
	}
	return nil
}

// TestStatefulSetVictims scales StatefulSets of every kind down, and compares the pods that went with those that were said to.
func TestStatefulSetVictims(t *testing.T) {
	t.Parallel()
	const sets = 40
	env := cluster.Env(t)
	env.Nodes(3)
	type scaled struct {
		set    *appsv1.StatefulSet
		before []corev1.Pod
		plan   guard.ScalePlan
	}
	var all []*scaled
	for i := range sets {
		all = append(all, &scaled{set: statefulSet(env, i)})
	}
	for i, s := range all {
		s.before = env.PodsReady(s.set.Name, int(*s.set.Spec.Replicas))
		if s.set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement && i%3 == 0 { // one that is not Ready changes nothing
			kubectl(t, "annotate", "-n", env.Namespace, "pod/"+s.before[0].Name, controlplane.Ready+"=false")
		}
	}
	for i, s := range all {
		after := int32(i % int(*s.set.Spec.Replicas))
		target, err := reader.ReadScaleTarget(t.Context(), env.Client, reader.KindStatefulSet, guard.Key{Namespace: env.Namespace, Name: s.set.Name})
		must(env, err)
		s.plan = guard.JudgeScale(target, (&reader.Snapshot{}).Index(hookset.New(hookset.Deps{}), nil), after, time.Now())
		scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: s.set.Name, Namespace: env.Namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: after}}
		_, err = env.Client.AppsV1().StatefulSets(env.Namespace).UpdateScale(t.Context(), s.set.Name, scale, metav1.UpdateOptions{})
		must(env, err)
	}
	for i, s := range all {
		after := i % int(*s.set.Spec.Replicas)
		env.Wait("statefulset "+s.set.Name, func(ctx context.Context) (bool, string, error) {
			list, err := env.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=" + s.set.Name})
			if err != nil {
				return false, "", err
			}
			if len(list.Items) != after {
				return false, fmt.Sprintf("%d pods, want %d", len(list.Items), after), nil
			}
			return true, "", agree(&s.plan, gonePods(s.before, list.Items))
		})
	}
}

// statefulSet makes one of two to five pods; its number says of which policy, from which ordinal, of how many.
func statefulSet(env *controlplane.Env, i int) *appsv1.StatefulSet {
	env.Helper()
	replicas, labels := int32(2+i%4), map[string]string{controlplane.AppLabel: fmt.Sprintf("db-%d", i)}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: labels[controlplane.AppLabel]},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{controlplane.PoolLabel: env.Namespace},
					Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
				},
			},
		},
	}
	if i%2 == 0 {
		set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	}
	if i%5 == 0 {
		set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(7 + i%3)}
	}
	created, err := env.Client.AppsV1().StatefulSets(env.Namespace).Create(env.Context(), set, metav1.CreateOptions{})
	must(env, err)
	return created
}
