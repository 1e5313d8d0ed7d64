package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// scenario is a random cluster and a random end of the first run.
type scenario struct {
	cordoned bool
	label    string // value before; "-": none
	removal  guard.Removal
	follows  bool
	polls    int
	plain    int
	nodes    []string
	ends     time.Duration
	rollback bool
	parallel bool

	crashAt     int           // request at which the first run dies; 0: none
	interruptAt time.Duration // first signal; 0: none
	undoOnly    bool          // the interrupted run is undone, not resumed
}

func drawScenario(rt *rapid.T) scenario {
	s := scenario{
		cordoned: rapid.Bool().Draw(rt, "cordoned"),
		label:    rapid.SampledFrom([]string{"-", "-", "true", "false", ""}).Draw(rt, "label"),
		removal:  rapid.SampledFrom([]guard.Removal{lbhooks.RemovalLabel, lbhooks.RemovalHook}).Draw(rt, "removal"),
		follows:  true,
		polls:    rapid.IntRange(1, 6).Draw(rt, "polls"),
		plain:    rapid.IntRange(0, 4).Draw(rt, "plain pods"),
		nodes:    rapid.SampledFrom([][]string{{"n1"}, {"n1", "n2"}}).Draw(rt, "nodes"),
		ends:     time.Duration(rapid.IntRange(0, 5).Draw(rt, "ends")) * time.Second,
		rollback: rapid.IntRange(0, 3).Draw(rt, "rollback") == 3,
		parallel: rapid.IntRange(0, 3).Draw(rt, "parallel") == 3,
		undoOnly: rapid.Bool().Draw(rt, "undo only"),
	}
	if rapid.Bool().Draw(rt, "crash") {
		s.crashAt = rapid.IntRange(1, 60).Draw(rt, "crash at")
	} else {
		s.interruptAt = time.Duration(rapid.IntRange(1, 12000).Draw(rt, "interrupt at")) * time.Millisecond
	}
	return s
}

func (s *scenario) world() *world {
	w := newWorld("n1", "n2", "n3", "n4")
	w.service("lb", "n1", "n2", "n3")
	w.service("api", "n1", "n3")
	for i := range s.plain {
		w.pod(fmt.Sprintf("plain-%d", i), "n1", "plain")
	}
	w.hook.removal, w.hook.polls, w.hook.follows = s.removal, s.polls, s.follows
	w.api.setNode("n1", func(n *corev1.Node) {
		n.Spec.Unschedulable = s.cordoned
		if s.label != "-" {
			n.Labels[lbhooks.ExcludeLabel] = s.label
		}
	})
	w.api.ends = func(*corev1.Pod) time.Duration { return s.ends }
	w.replace(time.Second, "n3", "n4")
	return w
}

func (s *scenario) options() Options {
	o := options(s.nodes...)
	o.Rollback, o.Parallel = s.rollback, s.parallel
	return o
}

var errCrashed = errors.New("crashed")

// Whatever ends the first run, the second one finishes it and uncordon gives back the very Node that there was. No pod is
// evicted twice, and none of a Service that has to let the node go before the proof.
func TestEveryInterruptedRunIsTakenUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScenario(rt)
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = s.play(t) })
		if failure != nil {
			rt.Fatalf("%+v: %v", s, failure)
		}
	})
}

func (s *scenario) play(t *testing.T) error {
	w := s.world()
	before := map[string]*corev1.Node{}
	for _, n := range s.nodes {
		before[n] = w.api.node(n)
	}
	first := s.first(t, w)
	if s.crashAt == 0 && s.interruptAt > 0 && first.Outcome != Done && first.Outcome != Interrupted {
		return fmt.Errorf("first run: %d, %w", first.Outcome, first.Err)
	}
	if s.rollback && s.crashAt == 0 && first.Outcome == Interrupted {
		for _, n := range first.Nodes {
			drained := slices.ContainsFunc(eventsOf[Drained](w), func(d Drained) bool { return d.Node == n.Name })
			if diff := sameNode(before[n.Name], w.api.node(n.Name)); diff != "" && !drained {
				return fmt.Errorf("rolled back, %s: %s", n.Name, diff)
			}
		}
	}
	if !s.undoOnly {
		r := w.runner(t, "r2")
		r.Soft = nil
		if res := r.Drain(t.Context(), s.options()); res.Outcome != Done {
			return fmt.Errorf("resumed: %d, %w", res.Outcome, res.Err)
		}
		for _, n := range s.nodes {
			if left := w.podsOn(n); len(left) > 0 {
				return fmt.Errorf("drained, and %v are on %s", left, n)
			}
		}
	}
	if err := s.order(w); err != nil {
		return err
	}
	r := w.runner(t, "r3")
	r.Soft = nil
	if _, res := r.Uncordon(t.Context(), RestoreOptions{Nodes: s.nodes, WaitTimeout: time.Minute}); res.Outcome != Done {
		return fmt.Errorf("uncordon: %d, %w", res.Outcome, res.Err)
	}
	for _, n := range s.nodes {
		before[n].Spec.Unschedulable = false // a typed uncordon always uncordons
		if diff := sameNode(before[n], w.api.node(n)); diff != "" {
			return fmt.Errorf("undone, %s: %s", n, diff)
		}
	}
	return nil
}

// first is the run that is interrupted.
func (s *scenario) first(t *testing.T, w *world) *Result {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var requests atomic.Int64
	if s.crashAt > 0 {
		w.api.before = func(call) error {
			if requests.Add(1) >= int64(s.crashAt) {
				cancel()
				return errCrashed
			}
			return nil
		}
	} else {
		timer := time.AfterFunc(s.interruptAt, func() { close(w.soft) })
		defer timer.Stop()
	}
	res := w.runner(t, "r1").Drain(ctx, s.options())
	w.api.mu.Lock()
	w.api.before = nil
	w.api.mu.Unlock()
	return res
}

func (w *world) podsOn(node string) []string {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	var out []string
	for name, p := range w.api.pods {
		if p.Spec.NodeName == node {
			out = append(out, name)
		}
	}
	return out
}

// order checks what was evicted when.
func (s *scenario) order(w *world) error {
	at := map[types.UID]time.Time{}
	for _, e := range w.api.accepted {
		if _, twice := at[e.uid]; twice {
			return fmt.Errorf("%s was evicted twice", e.uid)
		}
		at[e.uid] = e.at
	}
	for uid, service := range map[types.UID]string{"uid-lb-0": "n1/lb", "uid-lb-1": "n2/lb", "uid-api-0": "n1/api"} {
		evicted, ok := at[uid]
		if !ok {
			continue
		}
		w.hook.mu.Lock()
		proven := w.hook.provenAt[service]
		w.hook.mu.Unlock()
		if proven.IsZero() || evicted.Before(proven) {
			return fmt.Errorf("%s was evicted at %s, %s was proven at %s", uid, evicted, service, proven)
		}
	}
	return nil
}
