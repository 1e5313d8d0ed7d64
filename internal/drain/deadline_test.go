package drain

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestC37: with a deadline the node is withdrawn at once, its pods serve as long as possible, and go in time to end before
// it, proven or not.
func TestC37(t *testing.T) {
	tests := map[string]struct {
		polls int   // of the balancer until the node is out; negative: never
		grace int64 // of the pod, seconds
		want  Outcome
		from  time.Duration // when the pod is evicted, at the earliest
		until time.Duration
		warns bool
	}{
		"proven in time":                      {3, 30, Done, 0, 79 * time.Second, false},
		"not proven":                          {-1, 30, HookFailed, 80 * time.Second, 82 * time.Second, false},
		"grace longer than what there is":     {-1, 150, HookFailed, 0, 2 * time.Second, true},
		"a shorter --hook-timeout is nothing": {-1, 60, HookFailed, 50 * time.Second, 52 * time.Second, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.api.setPod("web/lb-0", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To(tc.grace) })
				w.hook.polls = tc.polls
				opts := options("n1")
				opts.Deadline = 2 * time.Minute
				started := time.Now()
				var evicted time.Duration
				w.onEvent = func(e Event) {
					if _, ok := e.(PodEvicted); ok {
						evicted = time.Since(started)
					}
				}
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				if res.Outcome != tc.want {
					t.Errorf("outcome %d (%v), want %d", res.Outcome, res.Err, tc.want)
				}
				if len(w.api.calls("evict")) != 1 || evicted < tc.from || evicted > tc.until {
					t.Errorf("%d evictions, after %s: want one from %s to %s", len(w.api.calls("evict")), evicted, tc.from, tc.until)
				}
				var late *Late
				if errors.As(res.Err, &late) != (tc.want == HookFailed) {
					t.Errorf("it does not say that it went without proof: %v", res.Err)
				}
				if warned := len(eventsOf[Warned](w)) > 0; warned != tc.warns {
					t.Errorf("warnings: %v", eventsOf[Warned](w))
				}
				if !res.Nodes[0].Labelled || res.Nodes[0].Evicted != 1 {
					t.Errorf("state %+v", res.Nodes[0])
				}
			})
		})
	}
}
