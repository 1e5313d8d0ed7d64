package drain

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// A drain that times out while the pods of a Service end: its rollback leaves the node out until they are gone, as uncordon
// does. A balancer that goes by what still serves would send to them.
func TestRollbackWaitsForPodsThatEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		ends     time.Duration // how long a pod takes
		labelled bool
		took     [2]time.Duration
	}{
		"they end":     {40 * time.Second, false, [2]time.Duration{35 * time.Second, 50 * time.Second}},
		"they do not":  {time.Hour, true, [2]time.Duration{10*time.Second + rollbackWait, 20*time.Second + rollbackWait}},
		"ended before": {time.Second, false, [2]time.Duration{0, 20 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.follows, w.hook.serving = true, true
				w.api.ends = func(p *corev1.Pod) time.Duration {
					if p.Labels["app"] == "lb" {
						return tc.ends
					}
					return time.Hour
				}
				w.pod("plain", "n1", "plain") // makes the drain time out
				opts := options("n1")
				opts.Timeout, opts.Rollback = 10*time.Second, true
				started := time.Now()
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				took := time.Since(started)
				if res.Outcome != Unfinished || took < tc.took[0] || took > tc.took[1] {
					t.Errorf("outcome %d after %s: %v", res.Outcome, took, res.Err)
				}
				n := w.api.node("n1")
				if labelled := n.Labels[lbhooks.ExcludeLabel] == "true"; labelled != tc.labelled || n.Spec.Unschedulable {
					t.Errorf("labelled %t, unschedulable %t", labelled, n.Spec.Unschedulable)
				}
				c := claimOf(t, w, "n1")
				if tc.labelled != (c != nil && c.Has(claim.SetLabel)) || tc.labelled != strings.Contains(res.Err.Error(), "terminate") {
					t.Errorf("claim %v, %v", c, res.Err)
				}
			})
		})
	}
}
