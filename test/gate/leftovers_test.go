package gate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/gate/manners"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// TestNothingIsLeftOfAGate: a gate that has done all that it does is uninstalled, and `uncordon --all-ours` leaves nothing of it,
// with the rights that `rbac` prints. While it runs, what is its own is left to it.
func TestNothingIsLeftOfAGate(t *testing.T) {
	t.Parallel()
	c := controlplane.New(t, controlplane.Options{})
	objects, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	others(t, c, objects) // the gate looks for them when it begins, and seldom after
	g := install(t, c, guard.GateHolder, 1, "--mode=enforce", "--scale=clamp")
	t.Cleanup(g.uninstall)
	s := newUsed(t, g, objects)
	before := s.traces()
	for _, want := range []string{
		guard.AnnotationKeeper, corev1.PodDeletionCost, claim.AnnotationRefused, claim.Annotation, manners.AnnotationDelay, manners.AnnotationPreDrain,
		lbhooks.ExcludeLabel, "unschedulable", "Lease", "Secret", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration",
	} {
		if !strings.Contains(strings.Join(before, "\n"), want) {
			t.Errorf("the gate left no %s, so that this shows nothing of it:\n%s", want, strings.Join(before, "\n"))
		}
	}
	s.Service("apart", func(svc *corev1.Service) { svc.Annotations = map[string]string{guard.AnnotationGate: "off"} })
	if out, _ := safedrain(t, c, "audit", "-o", "json"); !strings.Contains(out, "safedrain.dev/gate=off on the Service: "+s.Namespace+"/apart") {
		t.Errorf("an audit names no Service that the gate leaves out:\n%s", out)
	}
	out, code := safedrain(t, c, "uncordon", "--all-ours")
	if code != 0 || !strings.Contains(out, "a gate runs") || len(s.traces()) < len(before) {
		t.Errorf("while it runs: exit code %d\n%s\n%s", code, out, strings.Join(s.traces(), "\n"))
	}
	g.end(g.all()[0], syscall.SIGTERM)
	out, code = safedrain(t, c, "uncordon", "--all-ours", "--dry-run=client")
	if code != 0 || !strings.Contains(out, "kubectl delete mutatingwebhookconfiguration/safedrain-gate validatingwebhookconfiguration/safedrain-gate") || len(s.traces()) < len(before) {
		t.Errorf("a dry run: exit code %d\n%s\n%s", code, out, strings.Join(s.traces(), "\n"))
	}
	g.uninstall()
	as := s.drainer()
	uncordons := func() (bool, string, error) {
		out, code = safedrainAs(t, as, "uncordon", "--all-ours")
		return code == 0, fmt.Sprintf("exit code %d\n%s", code, out), nil
	}
	s.Wait("a user who may drain", func(context.Context) (bool, string, error) { return uncordons() })
	if !strings.Contains(out, "rbac --all-ours") || len(s.traces()) == 0 {
		t.Errorf("without the rights to clear:\n%s", out)
	}
	s.mayClear()
	s.Wait("one who may clear, too", func(context.Context) (bool, string, error) {
		done, why, err := uncordons() // the authorizer learns of a role a moment later
		return done && !strings.Contains(out, "rbac --all-ours"), why, err
	})
	if left := s.traces(); len(left) > 0 {
		t.Errorf("left:\n%s\nafter\n%s", strings.Join(left, "\n"), out)
	}
}

// others makes a cluster one with Cluster API's Machines and a cluster-autoscaler.
func others(t *testing.T, c *controlplane.Cluster, objects dynamic.Interface) {
	t.Helper()
	if _, err := objects.Resource(definitions).Create(t.Context(), machineDefinition(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: manners.StatusConfigMap.Name}}
	err := controlplane.Poll(t.Context(), readyWithin, "machines served", func(ctx context.Context) (bool, string, error) {
		_, err := c.Client().CoreV1().ConfigMaps(manners.StatusConfigMap.Namespace).Create(ctx, status, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, "", err
		}
		if _, err = objects.Resource(machines).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return false, "", err
		}
		_, err = c.Client().Discovery().ServerResourcesForGroupVersion(machines.GroupVersion().String()) // what is served is listed a moment later
		return err == nil, "", err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// used is a cluster in which a gate did all that it does.
type used struct {
	*controlplane.Env
	objects dynamic.Interface
}

func newUsed(t *testing.T, g *gated, objects dynamic.Interface) *used {
	t.Helper()
	s := &used{g.cluster.Env(t), objects}
	ctx := t.Context()
	nodes := s.Nodes(2, func(n *corev1.Node) {
		n.Spec.ProviderID = "openstack:///" + n.Name
		n.Annotations = map[string]string{"cluster.x-k8s.io/machine": n.Name, "cluster.x-k8s.io/cluster-namespace": s.Namespace}
	})
	for _, node := range nodes {
		s.machine(node)
	}
	s.Deployment("web", 4, spread)
	svc := s.Service("web", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Annotations = map[string]string{lbhooks.AnnotationSettle: "1s"}
	})
	s.ServiceStatus(svc, "203.0.113.1")
	s.EndpointsReady("web", 4)
	g.judges(s.Env)
	s.until("what the gate writes in advance", map[string]int{
		guard.AnnotationKeeper: 2, corev1.PodDeletionCost: 2, manners.AnnotationDelay: 2, manners.AnnotationPreDrain: 2,
	})
	if _, err := s.Client.CoreV1().Nodes().Patch(ctx, nodes[0], types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Wait("a keeper is evicted", func(ctx context.Context) (bool, string, error) {
		for _, p := range s.PodsReady("web", 4) {
			if p.Spec.NodeName == nodes[0] && p.Annotations[guard.AnnotationKeeper] != "" {
				err := s.Client.PolicyV1().Evictions(s.Namespace).Evict(ctx, &policyv1.Eviction{
					ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: p.Name},
				})
				// The client comes again by itself while it is refused, and may do so until the node has been withdrawn.
				return err == nil || apierrors.IsTooManyRequests(err), fmt.Sprint(err), nil
			}
		}
		return false, "no keeper", nil
	})
	s.until("the withdrawal", map[string]int{claim.AnnotationRefused: 1, claim.Annotation: 1, lbhooks.ExcludeLabel: 1})
	return s
}

// drainer makes a user who may drain and returns the user's kubeconfig.
func (s *used) drainer() (kubeconfig string) {
	s.Helper()
	config, err := s.Cluster.UserConfig(s.Namespace)
	if err != nil {
		s.Fatal(err)
	}
	kubeconfig = filepath.Join(s.TempDir(), "kubeconfig")
	if err := controlplane.WriteKubeconfig(config, kubeconfig); err != nil {
		s.Fatal(err)
	}
	s.grants(nil, []string{"clusterrolebinding", s.Namespace, "--clusterrole=safedrain"})
	return kubeconfig
}

// mayClear lets that user take away what a gate left, too.
func (s *used) mayClear() {
	s.Helper()
	s.grants([]string{"--all-ours"},
		[]string{"clusterrolebinding", s.Namespace + "-all-ours", "--clusterrole=safedrain-all-ours"},
		[]string{"rolebinding", s.Namespace + "-all-ours", "--clusterrole=safedrain-all-ours-gate", "--namespace=" + gateNamespace})
}

// grants applies the roles that `rbac` prints with some flags and binds them to the user.
func (s *used) grants(flags []string, bindings ...[]string) {
	s.Helper()
	roles, code := safedrain(s.TB, s.Cluster, append([]string{"rbac"}, flags...)...)
	file := filepath.Join(s.TempDir(), "roles.yaml")
	if err := os.WriteFile(file, []byte(roles), 0o600); err != nil || code != 0 {
		s.Fatalf("exit code %d, %v\n%s", code, err, roles)
	}
	kubectl := program(s.Cluster, s.TB)
	commands := [][]string{{"apply", "-f", file}}
	for _, b := range bindings {
		commands = append(commands, slices.Concat([]string{"create"}, b, []string{"--user=" + s.Namespace}))
	}
	for _, command := range commands {
		if _, stderr, code := kubectl(command...); code != 0 {
			s.Fatalf("kubectl %v: %s", command, stderr)
		}
	}
}

// machine makes the Machine of a node, of the same name.
func (s *used) machine(node string) {
	s.Helper()
	in := s.objects.Resource(machines).Namespace(s.Namespace)
	s.Wait("machine "+node, func(ctx context.Context) (bool, string, error) {
		made, err := in.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": machines.GroupVersion().String(), "kind": "Machine",
			"metadata": map[string]any{"name": node}, "spec": map[string]any{"providerID": "openstack:///" + node},
		}}, metav1.CreateOptions{})
		if err != nil {
			return false, "", err
		}
		made.Object["status"] = map[string]any{"nodeRef": map[string]any{"name": node}}
		_, err = in.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err == nil, "", err
	})
}

// until waits until as many objects bear each mark.
func (s *used) until(what string, want map[string]int) {
	s.Helper()
	s.Wait(what, func(context.Context) (bool, string, error) {
		all := s.traces()
		for mark, n := range want {
			found := 0
			for _, line := range all {
				if strings.HasSuffix(line, " "+mark) {
					found++
				}
			}
			if found != n {
				return false, fmt.Sprintf("%d times %s: %s", found, mark, strings.Join(all, "\n")), nil
			}
		}
		return true, "", nil
	})
}

// traces lists everything in the cluster that a gate can have left, whatever its kind: annotations, labels and finalizers of ours,
// deletion costs, nodes out of rotation or cordoned, and objects that bear its name. What the operator says in the annotations of
// a Service is the operator's, and events end by themselves.
func (s *used) traces() []string {
	s.Helper()
	lists, err := s.Client.Discovery().ServerPreferredResources()
	if err != nil {
		s.Fatal(err)
	}
	var out []string
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			s.Fatal(err)
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if r.Kind == "Event" || !strings.Contains(strings.Join(r.Verbs, " "), "list") {
				continue
			}
			all, err := s.objects.Resource(gv.WithResource(r.Name)).List(s.Context(), metav1.ListOptions{})
			if err != nil {
				s.Fatalf("list %s: %v", r.Name, err)
			}
			for k := range all.Items {
				out = append(out, tracesOf(r.Kind, &all.Items[k])...)
			}
		}
	}
	return out
}

func tracesOf(kind string, u *unstructured.Unstructured) (out []string) {
	add := func(what string) {
		out = append(out, fmt.Sprintf("%s %s/%s %s", kind, u.GetNamespace(), u.GetName(), what))
	}
	ours := func(key string) bool {
		return strings.HasPrefix(key, "safedrain.dev/") || strings.HasSuffix(key, "/safedrain")
	}
	for key := range u.GetAnnotations() {
		if (ours(key) && kind != "Service") || key == corev1.PodDeletionCost {
			add(key)
		}
	}
	for key := range u.GetLabels() {
		if ours(key) || key == lbhooks.ExcludeLabel {
			add(key)
		}
	}
	for _, f := range u.GetFinalizers() {
		if strings.Contains(f, "safedrain") {
			add(f)
		}
	}
	if cordoned, _, _ := unstructured.NestedBool(u.Object, "spec", "unschedulable"); cordoned {
		add("unschedulable")
	}
	if strings.HasPrefix(u.GetName(), guard.GateHolder) {
		add("by name")
	}
	return out
}
