package drain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// sameNode compares what stands on a node with what stood there, apart from its resourceVersion.
func sameNode(was, is *corev1.Node) string {
	is = is.DeepCopy()
	is.ResourceVersion = was.ResourceVersion
	return cmp.Diff(was, is, cmpopts.EquateEmpty())
}

func claimOf(t *testing.T, w *world, node string) *claim.Claim {
	t.Helper()
	c, err := claim.Of(w.api.node(node))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRefusalChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1")
		before := w.api.node("n1")
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		var refusal *Refusal
		if res.Outcome != Refused || !errors.As(res.Err, &refusal) {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" || len(w.api.calls("patch")) != 0 {
			t.Errorf("patched: %v %s", w.api.calls("patch"), diff)
		}
	})
}

// A proof that does not come: none of the Service's pods goes, the others do, exit 5; the same command goes on at once.
func TestProofTimeout(t *testing.T) {
	for _, rollback := range []bool{false, true} {
		t.Run(fmt.Sprint("rollback ", rollback), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.pod("plain", "n1", "plain")
				w.hook.polls = -1
				before := w.api.node("n1")
				opts := options("n1")
				opts.Rollback = rollback
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				if res.Outcome != HookFailed {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if diff := cmp.Diff([]string{"pods/web/plain"}, names(w.api.calls("evict"))); diff != "" {
					t.Errorf("evictions: %s", diff)
				}
				if rollback {
					if diff := sameNode(before, w.api.node("n1")); diff != "" {
						t.Errorf("not as it was: %s", diff)
					}
					return
				}
				if c := claimOf(t, w, "n1"); c == nil || c.Live() || c.Phase != claim.Withdrawn {
					t.Errorf("claim %v", c)
				}
				if s := res.Nodes[0]; !s.Cordoned || !s.Labelled || !s.Claimed || len(s.Remaining) != 1 || s.PodsGone != 1 {
					t.Errorf("state %+v", s)
				}
				w.hook.polls = 1
				start := time.Now()
				again := w.runner(t, "r2").Drain(t.Context(), options("n1"))
				if took := time.Since(start); again.Outcome != Done || took > 10*time.Second {
					t.Errorf("resumed: outcome %d (%v) after %s", again.Outcome, again.Err, took)
				}
				if r := eventsOf[Resumed](w); len(r) != 1 || r[0].Run != "r1" {
					t.Errorf("resumed %v", r)
				}
			})
		})
	}
}

func TestHookWithdraws(t *testing.T) {
	tests := map[string]struct {
		fail error
		want Outcome
	}{
		"proven":               {nil, Done},
		"the withdrawal fails": {errors.New("credentials expired"), HookFailed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.removal, w.hook.fail, w.hook.polls = lbhooks.RemovalHook, tc.fail, 3
				res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
				if res.Outcome != tc.want {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if got := len(w.api.calls("evict")); (got == 1) != (tc.want == Done) {
					t.Errorf("%d evictions", got)
				}
				if _, ok := w.api.node("n1").Labels[lbhooks.ExcludeLabel]; ok {
					t.Error("labelled although the removal is a call")
				}
				if c := claimOf(t, w, "n1"); !c.Has("hook:fake:web/lb") {
					t.Errorf("claim %v", c)
				}
			})
		})
	}
}

// A pod that tolerates the cordon and comes back is evicted once more, and then reported. C67.
func TestPodsThatComeBack(t *testing.T) {
	tests := map[string]struct {
		times int
		want  Outcome
		calls int
	}{
		"once":  {1, Done, 2},
		"twice": {2, Unfinished, 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.pod("p", "n1", "app")
				back := 0
				w.api.removed = func(p *corev1.Pod) *corev1.Pod {
					if back++; back > tc.times {
						return nil
					}
					q := p.DeepCopy()
					q.UID, q.DeletionTimestamp = types.UID(fmt.Sprintf("again-%d", back)), nil
					q.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/unschedulable", Operator: corev1.TolerationOpExists}}
					return q
				}
				res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
				if res.Outcome != tc.want || len(w.api.calls("evict")) != tc.calls {
					t.Errorf("outcome %d (%v), %d evictions", res.Outcome, res.Err, len(w.api.calls("evict")))
				}
				if tc.want != Done && !strings.Contains(res.Err.Error(), "tolerates node.kubernetes.io/unschedulable") {
					t.Errorf("error %v", res.Err)
				}
			})
		})
	}
}

// The pod comes back Pending, without a node: it is not on the node. C64.
func TestPodWithoutNodeIsNotOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("web-0", "n1", "app")
		w.api.removed = func(p *corev1.Pod) *corev1.Pod {
			q := p.DeepCopy()
			q.UID, q.DeletionTimestamp, q.Spec.NodeName, q.Status = "B", nil, "", corev1.PodStatus{Phase: corev1.PodPending}
			return q
		}
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done || len(w.api.calls("evict")) != 1 {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
	})
}

// Unproven but accepted: the settle time, then one pod at a time, the other nodes looked at in between. C65.
func TestUnprovenGoesOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n1", "n1", "n2")
		w.hook.blind = true
		opts := options("n1")
		opts.Flags.AcceptUnproven = []string{"web/lb"}
		settle := 20 * time.Second
		opts.Settle = &settle
		start := time.Now()
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		calls := w.api.calls("evict")
		if len(calls) != 3 || calls[0].at.Sub(start) < settle {
			t.Fatalf("evictions %v, the first after %s", calls, calls[0].at.Sub(start))
		}
		for i := 1; i < len(calls); i++ {
			if gap := calls[i].at.Sub(calls[i-1].at); gap < time.Second {
				t.Errorf("eviction %d came %s after the one before, which ends in a second", i, gap)
			}
		}
		if w.api.node("n1").Labels[lbhooks.ExcludeLabel] != "true" {
			t.Error("the lever was not used")
		}
		if e := eventsOf[NotProven](w); len(e) != 1 || e[0].Accepted != "by flag" || e[0].Settle != settle {
			t.Errorf("events %v", e)
		}
	})
}

// Node after node: the next only when every affected Service is covered again. C66.
func TestNodeAfterNode(t *testing.T) {
	tests := map[string]struct {
		replaced time.Duration // 0: never
		want     Outcome
	}{
		"replaced after 90 s": {90 * time.Second, Done},
		"never":               {0, Unfinished},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2", "n3", "n4")
				w.service("lb", "n1", "n2", "n3")
				if tc.replaced > 0 {
					w.replace(tc.replaced, "n3", "n4")
				}
				opts := options("n1", "n2")
				opts.Timeout = 5 * time.Minute
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				if res.Outcome != tc.want {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				calls := w.api.calls("evict")
				if tc.want != Done {
					if diff := cmp.Diff([]string{"pods/web/lb-0"}, names(calls)); diff != "" {
						t.Errorf("evictions: %s", diff)
					}
					return
				}
				if len(calls) != 2 || calls[1].at.Sub(calls[0].at) < tc.replaced {
					t.Errorf("evictions %v", calls)
				}
			})
		})
	}
}

// Two nodes that are fine one by one and not together are refused; two runs meet at the claim. C09.
func TestTwoRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		if res := w.runner(t, "r0").Drain(t.Context(), options("n1", "n2")); res.Outcome != Refused {
			t.Fatalf("both in one run: outcome %d", res.Outcome)
		}
		w.api.ends = func(*corev1.Pod) time.Duration { return 20 * time.Second }
		before := w.api.node("n2")
		results := make(chan *Result, 2)
		for i, n := range []string{"n1", "n2"} {
			r := w.runner(t, fmt.Sprintf("r%d", i+1))
			go func() {
				time.Sleep(time.Duration(i) * time.Second)
				results <- r.Drain(t.Context(), options(n))
			}()
		}
		outcomes := []Outcome{(<-results).Outcome, (<-results).Outcome}
		slices.Sort(outcomes)
		if diff := cmp.Diff([]Outcome{Done, Refused}, outcomes); diff != "" {
			t.Errorf("outcomes: %s", diff)
		}
		if diff := sameNode(before, w.api.node("n2")); diff != "" {
			t.Errorf("the loser's node: %s", diff)
		}
	})
}

func TestDryRunServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		before := w.api.node("n1")
		opts := options("n1")
		opts.DryRun = DryRunServer
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" || w.api.pod("web/lb-0").DeletionTimestamp != nil {
			t.Errorf("something happened: %s", diff)
		}
		for _, c := range append(w.api.calls("evict"), w.api.calls("patch")...) {
			if !c.dryRun {
				t.Errorf("%s without dry run", c)
			}
		}
		if len(w.api.calls("evict")) != 1 || w.hook.seen != nil {
			t.Errorf("evictions %v, polls %v", w.api.calls("evict"), w.hook.seen)
		}
	})
}

// One budgeted pod is held by an operator that releases it once the node is cordoned.
func TestBudgetReleasedAfterCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("ledger-1", "n1", "ledger")
		start := time.Now()
		w.api.answer = func(*corev1.Pod, int) error {
			if time.Since(start) > 22*time.Second {
				return nil
			}
			return budget429(0, "The disruption budget ledger needs 2 healthy pods and has 2 currently")
		}
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done || time.Since(start) > 35*time.Second {
			t.Errorf("outcome %d (%v) after %s", res.Outcome, res.Err, time.Since(start))
		}
	})
}
