package drain

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// A Service of policy Cluster enters through the node: it has to leave although no pod is evicted. C03.
func TestEntryLeavesWithoutEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("c", "n2")
		w.api.services[0].Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		w.api.services[0].Spec.HealthCheckNodePort = 0
		w.hook.polls = 5
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done || len(w.api.calls("evict")) != 0 {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		if w.hook.seen["n1/c"] != 5 || w.api.node("n1").Labels[lbhooks.ExcludeLabel] != "true" {
			t.Errorf("%d polls, labels %v", w.hook.seen["n1/c"], w.api.node("n1").Labels)
		}
	})
}

// Two replicas on the drained node, none elsewhere, forced: with --wait-replacements the second goes when the first is
// replaced. C66.
func TestReplacementsBetweenPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n1")
		w.replace(90*time.Second, "n2")
		opts := options("n1")
		opts.WaitReplacements = true
		opts.Flags.ForceUnsafe = []string{"web/lb"}
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		calls := w.api.calls("evict")
		if len(calls) != 2 || calls[1].at.Sub(calls[0].at) < 90*time.Second {
			t.Errorf("evictions %v", calls)
		}
		if _, ok := w.api.node("n1").Labels[lbhooks.ExcludeLabel]; ok {
			t.Error("labelled, which takes the last node out of the balancer")
		}
	})
}

// A run that died leaves its claim: the next one watches it for a minute and goes on; --take-over does at once.
func TestDeadRunIsTakenUp(t *testing.T) {
	for name, takeOver := range map[string]bool{"after a minute": false, "--take-over": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				s := scenario{nodes: []string{"n1"}, crashAt: 16}
				s.first(t, w)
				if c := claimOf(t, w, "n1"); c == nil || !c.Live() {
					t.Fatalf("claim %v", c)
				}
				start := time.Now()
				opts := options("n1")
				opts.TakeOver = takeOver
				res := w.runner(t, "r2").Drain(t.Context(), opts)
				took := time.Since(start)
				if res.Outcome != Done || takeOver != (took < 30*time.Second) || took > 80*time.Second {
					t.Errorf("outcome %d (%v) after %s", res.Outcome, res.Err, took)
				}
			})
		})
	}
}

// A live run renews its claim, so another one on the same node is turned away.
func TestLiveRunIsNotTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return 5 * time.Minute }
		first := make(chan *Result)
		go func() { first <- w.runner(t, "r1").Drain(t.Context(), options("n1")) }()
		time.Sleep(10 * time.Second)
		res := w.runner(t, "r2").Drain(t.Context(), options("n1"))
		if res.Outcome != Refused || !strings.Contains(res.Err.Error(), "r1@host") {
			t.Errorf("second run: %d, %v", res.Outcome, res.Err)
		}
		if res := <-first; res.Outcome != Done {
			t.Errorf("first run: %d, %v", res.Outcome, res.Err)
		}
	})
}

func TestShortTimeoutIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		opts := options("n1")
		opts.Timeout = 10 * time.Second
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		warned := eventsOf[Warned](w)
		if res.Outcome != Done || len(warned) != 1 || !strings.Contains(warned[0].Text, "shorter than the grace period") {
			t.Errorf("outcome %d (%v), %v", res.Outcome, res.Err, warned)
		}
	})
}

// A forbidden eviction before anything was evicted is an error, and the node is as it was.
func TestForbiddenEvictionUndoesTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		before := w.api.node("n1")
		w.api.deny = func(c call) bool { return c.verb == "evict" }
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Failed {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" {
			t.Errorf("not as it was: %s", diff)
		}
	})
}

// Without the right to watch, lists have to do.
func TestWithoutWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		w.api.deny = func(c call) bool { return c.verb == "watch" }
		start := time.Now()
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done || time.Since(start) > 20*time.Second {
			t.Errorf("outcome %d (%v) after %s", res.Outcome, res.Err, time.Since(start))
		}
	})
}

func TestStepsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		w.hook.settle = time.Second
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		var got []string
		for _, s := range res.Report.Steps {
			got = append(got, s.Name+" "+s.Outcome)
		}
		want := []string{"claim done", "evict done", "prove done", "settle done", "verify done", "withdraw done"}
		if diff := cmp.Diff(want, sortedText(got)); diff != "" {
			t.Errorf("steps: %s", diff)
		}
	})
}

// The watch is slow to begin and the pods are quick to end: no eviction before the watch, or its end would be missed.
func TestNoEvictionBeforeTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return 0 }
		w.api.before = func(c call) error {
			if c.verb == "watch" {
				time.Sleep(3 * time.Second)
			}
			return nil
		}
		opts := options("n1")
		opts.Timeout = time.Minute
		if res := w.runner(t, "r1").Drain(t.Context(), opts); res.Outcome != Done {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
	})
}

// A later ticket that is not granted does not count against this run; an earlier one and a granted one do.
func TestWhichClaimsCount(t *testing.T) {
	tests := map[string]struct {
		phase   claim.Phase
		earlier bool
		want    guard.Leaving
	}{
		"a later ticket":         {claim.Claimed, false, guard.Stays},
		"an earlier ticket":      {claim.Claimed, true, guard.LeavingClaimed},
		"a later run, granted":   {claim.Granted, false, guard.LeavingClaimed},
		"a later run, withdrawn": {claim.Withdrawn, false, guard.LeavingClaimed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2")
			w.api.setNode("n2", func(n *corev1.Node) {
				n.Spec.Unschedulable = true
				n.Annotations = map[string]string{claim.Annotation: (&claim.Claim{Run: "x", Phase: tc.phase}).String()}
			})
			r := w.runner(t, "r1")
			snapshot, err := r.Load(t.Context(), []string{"n1"})
			if err != nil {
				t.Fatal(err)
			}
			d := &run{Runner: r}
			if tc.earlier {
				d.earlier = claim.Earlier{Tickets: []claim.Ticket{{Run: "x", Nodes: []string{"n2"}}}}
			}
			ix := d.index(snapshot, []string{"n1"})
			if n, _ := ix.Node("n2"); n.Leaving != tc.want {
				t.Errorf("Node: %q, want %q", n.Leaving, tc.want)
			}
			for n := range ix.Nodes() {
				if n.Name == "n2" && n.Leaving != tc.want {
					t.Errorf("Nodes: %q, want %q", n.Leaving, tc.want)
				}
			}
		})
	}
}
