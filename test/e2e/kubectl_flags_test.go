package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/safedrain/safedrain/test/controlplane"
)

// wantRun runs safedrain and ends the test unless its exit code is as wanted and its output has each of the texts.
func wantRun(e *controlplane.Env, code int, texts []string, args ...string) (stdout, stderr string) {
	e.Helper()
	stdout, stderr, got := run(e, args...)
	if got != code {
		e.Fatalf("safedrain %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
	for _, text := range texts {
		if !strings.Contains(stdout+stderr, text) {
			e.Errorf("safedrain %s: no %q in\n%s%s", strings.Join(args, " "), text, stdout, stderr)
		}
	}
	return stdout, stderr
}

// oneBarePod makes a place with a node and a pod on it that --force lets go.
func oneBarePod(t *testing.T, mutate ...func(*corev1.Pod)) (e *controlplane.Env, node string, pod *corev1.Pod) {
	t.Parallel()
	e = cluster.Env(t)
	node = e.Nodes(2)[0]
	return e, node, e.Pod("web", node, mutate...)
}

func TestSeveralNodes(t *testing.T) {
	t.Parallel()
	e := cluster.Env(t)
	nodes := e.Nodes(3)
	e.Pod("a", nodes[0])
	e.Pod("b", nodes[1])
	keep := e.Pod("c", nodes[2])
	stdout, _ := wantRun(e, 0, nil, "node", nodes[1], "node/"+nodes[0], "--force")
	for _, node := range nodes[:2] {
		if !strings.Contains(stdout, "node/"+node+" drained\n") || len(podsOn(e, node)) != 0 {
			e.Errorf("%s is not drained\n%s", node, stdout)
		}
	}
	if getNode(e, nodes[2]).Spec.Unschedulable || podsOn(e, nodes[2])[0].UID != keep.UID {
		e.Error("a node that was not named was touched")
	}
}

// TestNodeSelector also shows that a selector and names exclude each other, and that one which matches nothing is an error.
func TestNodeSelector(t *testing.T) {
	t.Parallel()
	e := cluster.Env(t)
	nodes := e.Nodes(2, func(n *corev1.Node) { n.Labels["pool"] = e.Namespace })
	other := e.Nodes(1)[0]
	for _, node := range append(nodes, other) {
		e.Pod("on-"+node, node)
	}
	wantRun(e, 2, []string{"--selector"}, nodes[0], "-l", "pool="+e.Namespace)
	wantRun(e, 2, []string{"selector"}, "-l", "pool in (")
	wantRun(e, 1, []string{"no node matches"}, "-l", "pool=none-"+e.Namespace)
	wantRun(e, 0, nil, "--selector=pool="+e.Namespace, "--force")
	for _, node := range nodes {
		if len(podsOn(e, node)) != 0 || !getNode(e, node).Spec.Unschedulable {
			e.Errorf("%s is not drained", node)
		}
	}
	if len(podsOn(e, other)) != 1 || getNode(e, other).Spec.Unschedulable {
		e.Error("a node that the selector does not match was drained")
	}
}

// TestPodSelector drains only what is selected, and the rest neither goes nor asks for a flag, as with kubectl.
func TestPodSelector(t *testing.T) {
	t.Parallel()
	e := cluster.Env(t)
	nodes := e.Nodes(2)
	for i, node := range nodes {
		name := []string{"ours", "theirs"}[i]
		replicaSet(e, name, node)
		e.Pod(name+"-bare", node, withEmptyDir, labelled("tier", "data"))
	}
	kubectl(t, "drain", nodes[1], "--pod-selector=tier!=data")
	wantRun(e, 2, []string{"--pod-selector"}, nodes[0], "--pod-selector=a b")
	wantRun(e, 0, nil, nodes[0], "--pod-selector=tier!=data")
	for _, node := range nodes {
		if pods := podsOn(e, node); len(pods) != 1 || pods[0].Labels["tier"] != "data" {
			e.Errorf("pods left on %s: %d, want the one that was not selected", node, len(pods))
		}
	}
}

// TestDryRun shows for each mode that nothing persists, and that the server's mode finds what only the server can say.
func TestDryRun(t *testing.T) {
	for mode, suffix := range map[string]string{"client": " (dry run)", "server": " (server dry run)"} {
		t.Run(mode, func(t *testing.T) {
			e, node, pod := oneBarePod(t)
			theirs := kubectl(t, "drain", node, "--force", "--dry-run="+mode)
			before := nodeAtRest(e, node)
			stdout, _ := wantRun(e, 0, nil, node, "--force", "--dry-run="+mode)
			for _, line := range []string{"node/" + node + " cordoned", "node/" + node + " drained"} {
				if !strings.Contains(stdout, line+suffix+"\n") || !strings.Contains(theirs, line+suffix+"\n") {
					e.Errorf("no line %q in both of\n%s\n%s", line+suffix, stdout, theirs)
				}
			}
			if !strings.Contains(stdout, "web") {
				e.Errorf("the pod is not named\n%s", stdout)
			}
			after, pods := getNode(e, node), podsOn(e, node)
			if after.ResourceVersion != before.ResourceVersion {
				wantNodeAsBefore(e, before, after)
			}
			if len(pods) != 1 || pods[0].UID != pod.UID || pods[0].DeletionTimestamp != nil {
				e.Error("the pod was touched")
			}
			wantRun(e, 3, []string{"--force"}, node, "--dry-run="+mode) // a refusal is one in a dry run too
		})
	}
}

// TestGracePeriod reads the grace period that the server recorded for the pod; its own is 30 s.
func TestGracePeriod(t *testing.T) {
	for flag, want := range map[string]int64{"--grace-period=7": 7, "--grace-period=-1": 30, "--disable-eviction --grace-period=9": 9} {
		t.Run(flag, func(t *testing.T) {
			e, node, _ := oneBarePod(t, controlplane.With(map[string]string{controlplane.TerminatesAfter: "never"}))
			b := begin(t, append(strings.Fields(flag), node, "--force")...)
			var got *int64
			e.Wait("the pod terminates", func(context.Context) (bool, string, error) {
				pods := podsOn(e, node)
				if len(pods) == 1 && pods[0].DeletionTimestamp != nil {
					got = pods[0].DeletionGracePeriodSeconds
				}
				return got != nil, b.said.String(), nil
			})
			if *got != want {
				e.Errorf("grace period %d, want %d", *got, want)
			}
			must(e, e.Client.CoreV1().Pods(e.Namespace).Delete(e.Context(), "web", *metav1.NewDeleteOptions(0)))
			if said, code := b.end(); code != 0 || len(podsOn(e, node)) != 0 {
				e.Errorf("exit code %d\n%s", code, said)
			}
		})
	}
}

// TestGracePeriodZero is kubectl's immediate end: a pod that would never terminate by itself is gone.
func TestGracePeriodZero(t *testing.T) {
	e, node, _ := oneBarePod(t, controlplane.With(map[string]string{controlplane.TerminatesAfter: "never"}))
	wantRun(e, 0, []string{"drained"}, node, "--force", "--grace-period=0", "--timeout=60s")
	if len(podsOn(e, node)) != 0 {
		e.Error("the pod is still there")
	}
}

// TestSkipWaitForDelete is about a pod that has been terminating for long and does not end.
func TestSkipWaitForDelete(t *testing.T) {
	t.Parallel()
	e := cluster.Env(t)
	nodes := e.Nodes(2)
	for i, node := range nodes {
		name := []string{"ours", "theirs"}[i]
		e.Pod(name, node, withFinalizer)
		kubectl(t, "-n", e.Namespace, "delete", "pod", name, "--wait=false", "--grace-period=1")
	}
	wantRun(e, 4, []string{"ours"}, nodes[0], "--force", "--timeout=2s")
	wantRun(e, 0, []string{"uncordoned"}, "uncordon", nodes[0])
	kubectl(t, "drain", nodes[1], "--force", "--skip-wait-for-delete-timeout=2", "--timeout=100s")
	wantRun(e, 0, []string{"drained"}, nodes[0], "--force", "--skip-wait-for-delete-timeout=2", "--timeout=100s")
	for _, node := range nodes {
		if pods := podsOn(e, node); len(pods) != 1 {
			e.Errorf("%d pods on %s, want the one with the finalizer", len(pods), node)
		}
	}
}

// heldByBudget is a Deployment on two nodes, one pod each, of which one is not Ready, so that the budget allows nothing now.
func heldByBudget(t *testing.T) (e *controlplane.Env, nodes []string) {
	t.Parallel()
	e = cluster.Env(t)
	nodes = e.Nodes(2)
	pods := map[string]*corev1.Pod{}
	for i, node := range nodes {
		pod := e.Pod([]string{"a", "b"}[i], node, labelled(controlplane.AppLabel, "web"))
		pods[pod.Name] = pod
	}
	annotate(e, "b", controlplane.Ready, "false")
	e.Wait("b unready", func(context.Context) (bool, string, error) {
		pod := podsOn(e, nodes[1])[0]
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
				return true, "", nil
			}
		}
		return false, "Ready", nil
	})
	e.Budget("web", intstr.FromInt32(1))
	e.Wait("nothing allowed", func(ctx context.Context) (bool, string, error) {
		pdb, err := e.Client.PolicyV1().PodDisruptionBudgets(e.Namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && pdb.Status.CurrentHealthy == 1 && pdb.Status.DisruptionsAllowed == 0, "allowed", err
	})
	return e, nodes
}

func annotate(e *controlplane.Env, pod, key, value string) {
	e.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	_, err := e.Client.CoreV1().Pods(e.Namespace).Patch(e.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{})
	must(e, err)
}

// TestTimeout is a budget that holds until the timeout, for both programs; and the state is kept.
func TestTimeout(t *testing.T) {
	e, nodes := heldByBudget(t)
	_, stderr := wantRun(e, 4, []string{"budget " + e.Namespace + "/web", "safedrain uncordon " + nodes[0]}, nodes[0], "--force", "--timeout=3s")
	if pods := podsOn(e, nodes[0]); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
		e.Errorf("the pod was touched\n%s", stderr)
	}
	if !getNode(e, nodes[0]).Spec.Unschedulable {
		e.Error("the node is not cordoned")
	}
	_, theirs, code := program{path: kubectlBin, kubeconfig: kubeconfig}.run(t, "drain", nodes[0], "--force", "--timeout=3s")
	if code != 1 || len(podsOn(e, nodes[0])) != 1 {
		e.Errorf("kubectl: exit code %d\n%s", code, theirs)
	}
	annotate(e, "b", controlplane.Ready, "true")
	wantRun(e, 0, []string{"node/" + nodes[0] + " already cordoned", "node/" + nodes[0] + " drained"}, nodes[0], "--force", "--timeout=100s")
}

// TestDisableEviction bypasses the budget, as with kubectl, and says deleted, not evicted.
func TestDisableEviction(t *testing.T) {
	e, nodes := heldByBudget(t)
	wantRun(e, 0, []string{"pod/a deleted from " + e.Namespace + " namespace"}, nodes[0], "--force", "--disable-eviction")
	kubectl(t, "drain", nodes[1], "--force", "--disable-eviction")
	if len(podsOn(e, nodes[0]))+len(podsOn(e, nodes[1])) != 0 {
		e.Error("pods are left")
	}
}

// TestAlreadyCordoned leaves a cordon of somebody else's where a rollback or an undo would be ours to make.
func TestAlreadyCordoned(t *testing.T) {
	e, node, _ := oneBarePod(t, withFinalizer)
	kubectl(t, "cordon", node)
	e.Wait("tainted", func(context.Context) (bool, string, error) {
		return len(getNode(e, node).Spec.Taints) == 1, "no taint", nil
	})
	before := nodeAtRest(e, node)
	wantRun(e, 4, []string{"node/" + node + " already cordoned"}, node, "--force", "--timeout=2s", "--rollback")
	wantNodeAsBefore(e, before, getNode(e, node))
}

// TestMissingNode names one node of several that is not there: nothing is changed on the others.
func TestMissingNode(t *testing.T) {
	e, node, pod := oneBarePod(t)
	before := nodeAtRest(e, node)
	wantRun(e, 1, []string{node + "-missing"}, node, node+"-missing", "--force")
	after := getNode(e, node)
	wantNodeAsBefore(e, before, after)
	if pods := podsOn(e, node); len(pods) != 1 || pods[0].UID != pod.UID {
		e.Error("the pod is gone")
	}
}

// TestNamespaceTerminating evicts from a namespace that is being deleted, which the server forbids: the pod goes by itself.
func TestNamespaceTerminating(t *testing.T) {
	e, node, _ := oneBarePod(t, terminatesAfter(4))
	kubectl(t, "delete", "namespace", e.Namespace, "--wait=false")
	wantRun(e, 0, []string{"drained"}, node, "--force", "--timeout=100s")
	if len(podsOn(e, node)) != 0 {
		e.Error("the pod is still there")
	}
}

// TestRebornPod is a StatefulSet whose pod comes back under the same name on another node while the drain goes on: the new
// one is not evicted, and the old one counts as gone.
func TestRebornPod(t *testing.T) {
	t.Parallel()
	e := cluster.Env(t)
	node := e.Nodes(1)[0]
	one := int32(1)
	sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &one, Selector: selector("db"), Template: template("db", node),
	}}
	sts.Spec.Template.Spec.NodeSelector = map[string]string{controlplane.PoolLabel: e.Namespace}
	_, err := e.Client.AppsV1().StatefulSets(e.Namespace).Create(e.Context(), sts, metav1.CreateOptions{})
	must(e, err)
	old := e.PodsReady("db", 1)[0]
	e.Pod("slow", node, terminatesAfter(6)) // keeps the drain going
	e.Nodes(1)
	wantRun(e, 0, []string{"pod/db-0 evicted", "drained"}, node, "--force", "--timeout=100s")
	reborn := e.PodsReady("db", 1)[0]
	if reborn.UID == old.UID || reborn.Name != old.Name || reborn.Spec.NodeName == node {
		e.Errorf("pod %s on %s", reborn.Name, reborn.Spec.NodeName)
	}
	if reborn.CreationTimestamp.Sub(old.CreationTimestamp.Time) < 0 || reborn.DeletionTimestamp != nil {
		e.Error("the new pod was touched")
	}
}
