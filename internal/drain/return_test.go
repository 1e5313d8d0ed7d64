package drain

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A node that is back in rotation at the end of the settle time, as a target that turns healthy again while it drains, is
// proven out anew before anything of the Service goes; one that comes back again and again is not proven.
func TestBackWhileItSettles(t *testing.T) {
	for name, tc := range map[string]struct {
		returns int
		want    Outcome
		evicted int
	}{
		"never":           {0, Done, 1},
		"once":            {1, Done, 1},
		"twice":           {2, Done, 1},
		"again and again": {1000, HookFailed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.settle, w.hook.returns = 5*time.Second, tc.returns
				started := time.Now()
				res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
				if res.Outcome != tc.want || len(w.api.calls("evict")) != tc.evicted {
					t.Fatalf("outcome %d, %d evictions: %v", res.Outcome, len(w.api.calls("evict")), res.Err)
				}
				if tc.want == HookFailed {
					if !strings.Contains(res.Err.Error(), "names n1 again") {
						t.Errorf("error %v", res.Err)
					}
					if c := claimOf(t, w, "n1"); c == nil || c.Services["web/lb"].ProofAt != nil {
						t.Errorf("the claim says that it is proven out: %+v", c)
					}
					return
				}
				if least := time.Duration(tc.returns+1) * w.hook.settle; time.Since(started) < least {
					t.Errorf("over after %s, want %s of settling", time.Since(started), least)
				}
				if warned := len(eventsOf[Warned](w)); warned != tc.returns {
					t.Errorf("%d warnings, want %d", warned, tc.returns)
				}
			})
		})
	}
}
