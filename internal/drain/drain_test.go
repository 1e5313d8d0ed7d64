package drain

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

func TestDrainOfALocalService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2", "n3")
		w.service("lb", "n1", "n2")
		w.pod("plain", "n1", "plain")
		w.hook.polls, w.hook.settle = 8, 2*time.Second
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		evictions := w.api.calls("evict")
		if diff := cmp.Diff([]string{"pods/web/plain", "pods/web/lb-0"}, names(evictions)); diff != "" {
			t.Errorf("evictions: %s", diff)
		}
		proven := w.hook.provenAt["n1/lb"]
		if got := evictions[1].at.Sub(proven); got < 2*time.Second || got > 3*time.Second {
			t.Errorf("evicted %s after the proof, want the settle time of 2s", got)
		}
		n := w.api.node("n1")
		c, err := claim.Of(n)
		if err != nil || c == nil || c.Phase != claim.Proven || c.Live() || c.Services["web/lb"].ProofAt == nil {
			t.Errorf("claim %v, %v", c, err)
		}
		if !n.Spec.Unschedulable || n.Labels[lbhooks.ExcludeLabel] != "true" {
			t.Errorf("node is cordoned %v, labels %v", n.Spec.Unschedulable, n.Labels)
		}
		for _, e := range evictions {
			if e.uid == "" || e.grace != nil {
				t.Errorf("%s: uid %q, grace %v", e, e.uid, e.grace)
			}
		}
	})
}

// TestManyServicesOfANode: what is noted of many Services at the same time costs a few patches, and none fails because
// the others changed the node under it.
func TestManyServicesOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 40
		w := newWorld("n1", "n2")
		for i := range many {
			w.service(fmt.Sprintf("lb%d", i), "n1", "n2")
		}
		w.hook.settle = 2 * time.Second
		w.api.before = func(c call) error {
			if c.verb == "patch" {
				time.Sleep(50 * time.Millisecond) // else it is over before the next one can wait for it
			}
			return nil
		}
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		c, err := claim.Of(w.api.node("n1"))
		if err != nil || len(c.Services) != many {
			t.Fatalf("%d Services in the claim, %v; want %d", len(c.Services), err, many)
		}
		for name, s := range c.Services {
			if s.ProofAt == nil || !s.Released {
				t.Errorf("%s: %+v, want a proof and its release", name, s)
			}
		}
		if got := len(w.api.calls("patch")); got >= many {
			t.Errorf("%d patches for %d Services", got, many)
		}
	})
}
