package gate

import (
	"context"
	"fmt"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRebalanceThroughTheGate: `uncordon --rebalance` evicts one of two pods that share a node, by leave of a gate that
// enforces: the one that the gate does not keep. The other one, the last on its node, is refused to everybody.
func TestRebalanceThroughTheGate(t *testing.T) {
	t.Parallel()
	g := oneGate(t, "gate-clamp", 1, "--mode=enforce", "--scale=clamp")
	c := own.get(t)
	e := c.Env(t)
	nodes := e.Nodes(2)
	cordoned := []byte(`{"spec":{"unschedulable":true}}`) // so that both pods come to the other node
	if _, err := e.Client.CoreV1().Nodes().Patch(t.Context(), nodes[0], types.MergePatchType, cordoned, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Deployment("web", 2, spread)
	e.Service("web")
	e.EndpointsReady("web", 2)
	g.judges(e)
	out, code := safedrain(t, c, "uncordon", nodes[0], "--rebalance", "--wait-timeout=100s")
	if code != 0 || !strings.Contains(out, "comes to node/"+nodes[0]) {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	e.PodsReady("web", 2)
	e.Wait("a pod on each node", func(context.Context) (bool, string, error) {
		spread := on(e, "web")
		return spread[nodes[0]] == 1 && spread[nodes[1]] == 1, fmt.Sprint(spread), nil
	})
	for _, p := range e.PodsReady("web", 2) {
		err := e.Client.PolicyV1().Evictions(e.Namespace).Evict(t.Context(), &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: e.Namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}, Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
		if !apierrors.IsTooManyRequests(err) {
			t.Errorf("the last pod on %s may go: %v", p.Spec.NodeName, err)
		}
	}
}
