package drain

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// TestOwnEvictionsPassTheGate: whatever way a Service lets the node go, its pods are not evicted before the claim says that
// they may, so that a gate which goes by the claim never holds up the run that wrote it.
func TestOwnEvictionsPassTheGate(t *testing.T) {
	nowhere := func(w *world) { w.hook.sees = true }
	for name, tc := range map[string]struct {
		on     []string // nodes of the Service's pods
		world  func(*world)
		option func(*Options)
		free   bool
	}{
		"proven by label":        {[]string{"n1", "n2"}, func(w *world) { w.hook.polls, w.hook.settle = 3, 5*time.Second }, nil, false},
		"proven by call":         {[]string{"n1", "n2"}, func(w *world) { w.hook.removal = lbhooks.RemovalHook }, nil, false},
		"back during the settle": {[]string{"n1", "n2"}, func(w *world) { w.hook.settle, w.hook.returns = 5*time.Second, 1 }, nil, false},
		"unproven, accepted":     {[]string{"n1", "n2"}, func(w *world) { w.hook.blind = true }, func(o *Options) { o.Flags.AcceptUnproven = []string{"all"} }, false},
		"no lever, accepted":     {[]string{"n1", "n2"}, func(w *world) { w.hook.removal, w.hook.blind = lbhooks.RemovalNone, true }, func(o *Options) { o.Flags.AcceptUnproven = []string{"all"} }, false},
		"the last one, forced":   {[]string{"n1"}, func(*world) {}, func(o *Options) { o.Flags.ForceUnsafe = []string{"all"} }, false},
		"not sent to":            {[]string{"n1", "n2"}, func(w *world) { nowhere(w); exclude(w, "n1") }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", tc.on...)
				tc.world(w)
				early := 0
				w.api.answer = func(p *corev1.Pod, _ int) error { // its caller holds the lock
					facts := cluster.NodeFacts(w.api.nodes[p.Spec.NodeName])
					if facts.Claim == nil || !facts.Claim.Services[guard.Key{Namespace: "web", Name: "lb"}].Released {
						early++
						return apierrors.NewTooManyRequests("held", 1)
					}
					return nil
				}
				o := options("n1")
				if tc.option != nil {
					tc.option(&o)
				}
				res := w.runner(t, "r1").Drain(t.Context(), o)
				if res.Outcome != Done || early > 0 {
					t.Errorf("outcome %d, %d evictions too early: %v", res.Outcome, early, res.Err)
				}
				c, err := claim.Of(w.api.node("n1"))
				if err != nil || len(c.Free) > 0 != tc.free {
					t.Errorf("free %v: %v", c.Free, err)
				}
			})
		})
	}
}

// exclude bears the label of somebody else.
func exclude(w *world, node string) {
	w.api.setNode(node, func(n *corev1.Node) { n.Labels[lbhooks.ExcludeLabel] = "true" })
}
