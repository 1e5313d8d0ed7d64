package claim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

var errNone = errors.New("no endpoint would be left")

// race is some runs that want nodes at the same time, and where the endpoints of Services are. Nodes go by their index.
type race struct {
	nodes     int
	services  [][]int
	runs      [][]int
	winners   int  // how many have to go on; 0: at least one
	strangers bool // somebody else writes the nodes all the time
}

// rounds is how often each race is run.
const rounds = 12

func TestRaces(t *testing.T) {
	tests := map[string]race{
		"two runs of a node, conflict":          {nodes: 2, services: [][]int{{0, 1}}, runs: [][]int{{0}, {1}}, winners: 1},
		"two runs of a node, no conflict":       {nodes: 3, services: [][]int{{0, 1, 2}}, runs: [][]int{{0}, {1}}, winners: 2},
		"two runs of the same node":             {nodes: 2, services: [][]int{{0, 1}}, runs: [][]int{{0}, {0}}, winners: 1},
		"two runs of two nodes, one in common":  {nodes: 4, services: [][]int{{0, 1, 2, 3}}, runs: [][]int{{0, 1}, {1, 2}}, winners: 1},
		"a run of three and one of one":         {nodes: 5, services: [][]int{{0, 3}, {2, 4}}, runs: [][]int{{0, 1, 2}, {3}}, winners: 1},
		"two runs of three nodes, conflict":     {nodes: 7, services: [][]int{{0, 3}, {2, 5, 6}}, runs: [][]int{{0, 1, 2}, {3, 4, 5}}, winners: 1},
		"three runs, any two conflict":          {nodes: 3, services: [][]int{{0, 1}, {1, 2}, {0, 2}}, runs: [][]int{{0}, {1}, {2}}, winners: 1},
		"three runs, only all three conflict":   {nodes: 3, services: [][]int{{0, 1, 2}}, runs: [][]int{{0}, {1}, {2}}, winners: 2},
		"three runs of two nodes, in a ring":    {nodes: 6, services: [][]int{{0, 2}, {3, 4}, {5, 1}}, runs: [][]int{{0, 1}, {2, 3}, {4, 5}}, winners: 0},
		"conflict, and strangers write as well": {nodes: 2, services: [][]int{{0, 1}}, runs: [][]int{{0}, {1}}, winners: 1, strangers: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { tc.play(t) })
	}
}

// heartbeat is what strangers write.
const heartbeat = "test.safedrain.dev/heartbeat"

func (r *race) play(t *testing.T) {
	env := cluster.Env(t)
	names := env.Nodes(r.nodes)
	clients := make([]kubernetes.Interface, len(r.runs))
	for i := range clients {
		clients[i] = clientOf(t, fmt.Sprintf("claimer-%d", i))
	}
	if r.strangers {
		stop := strangers(t, names)
		defer stop()
	}
	firsts := map[int]int{}
	for round := range rounds {
		r.disturb(t, env, names, round)
		w := newWorld(r, names, clients)
		if err := w.run(t.Context(), round); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for i, run := range w.runs {
			if run.err == nil {
				firsts[i]++
			}
		}
	}
	t.Logf("%d rounds, won by run: %v", rounds, firsts)
}

// disturb gives the nodes another state before every round, which has to be there again after it.
func (r *race) disturb(t *testing.T, env *controlplane.Env, names []string, round int) {
	t.Helper()
	for i, name := range names {
		labels := map[int]string{0: `null`, 1: `"true"`, 2: `"false"`, 3: `""`}[(round+i)%4]
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}},"spec":{"unschedulable":%t}}`, lbhooks.ExcludeLabel, labels, (round+i)%3 == 0)
		if err := patchNode(t.Context(), env.Client, name, patch); err != nil {
			t.Fatal(err)
		}
	}
}

// world is one round.
type world struct {
	race   *race
	names  []string
	admin  kubernetes.Interface
	before map[string]*corev1.Node
	runs   []*contender
}

// contender is one run in a round.
type contender struct {
	id    string
	nodes []string
	c     *claim.Claimer
	held  []*claim.Held
	err   error
}

func newWorld(r *race, names []string, clients []kubernetes.Interface) *world {
	w := &world{race: r, names: names, admin: cluster.Client()}
	for i, wanted := range r.runs {
		c := &contender{id: fmt.Sprintf("run-%d", i)}
		for _, n := range wanted {
			c.nodes = append(c.nodes, names[n])
		}
		c.c = &claim.Claimer{Nodes: clients[i].CoreV1().Nodes(), Clock: clock.RealClock{}, Run: c.id, Holder: c.id + "@test"}
		w.runs = append(w.runs, c)
	}
	return w
}

// judge is a guard of one rule: of every Service that the run touches some endpoint stays.
func (w *world) judge(c *contender) claim.Judge {
	fails := func(gone []string) bool {
		return slices.ContainsFunc(w.race.services, func(on []int) bool {
			touched := slices.ContainsFunc(on, func(n int) bool { return slices.Contains(c.nodes, w.names[n]) })
			left := slices.ContainsFunc(on, func(n int) bool { return !slices.Contains(gone, w.names[n]) })
			return touched && !left
		})
	}
	return func(_ context.Context, e claim.Earlier) error {
		if fails(c.nodes) {
			return errNone
		}
		if fails(append(e.Nodes(), c.nodes...)) {
			return &claim.Conflict{Cause: errNone}
		}
		return nil
	}
}

// run lets all contenders start within some milliseconds, checks what came of it, and lets the winners undo theirs.
func (w *world) run(ctx context.Context, round int) (err error) {
	if w.before, err = nodesOf(ctx, w.admin, w.names); err != nil {
		return err
	}
	var all, acquiring sync.WaitGroup
	acquiring.Add(len(w.runs))
	start, acquired := make(chan struct{}), make(chan struct{})
	go func() { acquiring.Wait(); close(acquired) }()
	for i, c := range w.runs {
		// In half of the rounds all start at once, in the others one after the other, about as far apart as a call takes.
		delay := time.Duration(0)
		if round%2 == 1 {
			delay = time.Duration(rand.IntN(5)*(i+1)) * time.Millisecond
		}
		all.Go(func() {
			<-start
			<-time.After(delay)
			c.held, _, c.err = c.c.Acquire(ctx, c.nodes, w.judge(c))
			acquiring.Done()
			c.live(ctx, acquired)
		})
	}
	close(start)
	all.Wait()
	if err := errors.Join(w.checkRuns(), w.checkNodes(ctx)); err != nil {
		return err
	}
	return w.undo(ctx)
}

// live renews the claims of a run that went on until the others have ended too, as every run does: one that found a claim
// there before its own ticket watches whether it lives.
func (c *contender) live(ctx context.Context, until <-chan struct{}) {
	for c.err == nil {
		select {
		case <-until:
			return
		case <-time.After(time.Second):
		}
		for _, h := range c.held {
			c.err = errors.Join(c.err, h.Renew(ctx))
		}
	}
}

// checkRuns: as many go on as may, together they leave every Service an endpoint, and who lost says to whom.
func (w *world) checkRuns() error {
	var errs []error
	var gone []string
	winners := 0
	for _, c := range w.runs {
		if c.err != nil {
			var lost *claim.LostTo
			if !errors.As(c.err, &lost) || lost.Run == "" || lost.Run == c.id {
				errs = append(errs, fmt.Errorf("%s ended with %w, want *LostTo with the run that was first", c.id, c.err))
			}
			continue
		}
		winners++
		for _, n := range c.nodes {
			if slices.Contains(gone, n) {
				errs = append(errs, fmt.Errorf("two runs hold node %s", n))
			}
		}
		gone = append(gone, c.nodes...)
	}
	if want := w.race.winners; want > 0 && winners != want || winners == 0 {
		errs = append(errs, fmt.Errorf("%d runs went on, want %d", winners, w.race.winners))
	}
	for i, on := range w.race.services {
		if !slices.ContainsFunc(on, func(n int) bool { return !slices.Contains(gone, w.names[n]) }) {
			errs = append(errs, fmt.Errorf("the runs that went on leave Service %d no endpoint", i))
		}
	}
	return errors.Join(errs...)
}

// checkNodes: a winner's nodes are claimed, granted where the ticket is, and cordoned; every other node is as it was.
func (w *world) checkNodes(ctx context.Context) error {
	after, err := nodesOf(ctx, w.admin, w.names)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range w.runs {
		if c.err != nil {
			continue
		}
		for _, name := range c.nodes {
			if after[name] == nil {
				continue // held by two, which checkRuns says
			}
			cl, err := claim.Of(after[name])
			if err != nil || cl == nil || cl.Run != c.id || cl.Phase != claim.Granted || !after[name].Spec.Unschedulable {
				errs = append(errs, fmt.Errorf("node %s of %s: claim %+v, cordoned %t, %w", name, c.id, cl, after[name].Spec.Unschedulable, err))
			}
			delete(after, name)
		}
	}
	return errors.Join(append(errs, w.asBefore(after))...)
}

// asBefore compares nodes with what they were before the round.
func (w *world) asBefore(after map[string]*corev1.Node) error {
	var errs []error
	for name, is := range after {
		was := w.before[name]
		if w.race.strangers {
			delete(was.Annotations, heartbeat)
			delete(is.Annotations, heartbeat)
		}
		if diff := cmp.Diff(was, is, equateEmpty); diff != "" {
			errs = append(errs, fmt.Errorf("node %s is not as it was (-was +is):\n%s", name, diff))
		}
	}
	return errors.Join(errs...)
}

// undo ends the round: after the winners took back what they set, every node is as it was.
func (w *world) undo(ctx context.Context) error {
	var errs []error
	for _, c := range w.runs {
		for _, h := range c.held {
			if _, err := h.Undo(ctx); err != nil {
				errs = append(errs, err)
			}
		}
	}
	after, err := nodesOf(ctx, w.admin, w.names)
	return errors.Join(append(errs, err, w.asBefore(after))...)
}
