package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var (
	errCrashed = errors.New("crashed")
	errNone    = errors.New("no endpoint would be left")
)

// actor is one run in the model.
type actor struct {
	id       string
	nodes    []string
	takeOver bool
	crashAt  int // the API call that it does not survive; 0: none

	calls   int
	crashed bool
	err     error
}

// world runs actors against one API, one API call at a time, in an order that choose decides.
type world struct {
	api      *modelAPI
	clock    *clocktesting.FakeClock
	services [][]string // for each Service the nodes that have its endpoints
	actors   []*actor
	choose   func(options int) int
	// disjoint says that no node is wanted by two runs: then reading one's own node commutes with all that others do, and
	// orders that differ in nothing else need not be tried.
	disjoint bool
	parked   chan parked
	wake     []chan time.Duration
}

// parked is an actor that waits for its turn to make a call.
type parked struct {
	actor int
	reads bool
}

// gate is the API as one actor sees it: each call waits for its turn.
type gate struct {
	w    *world
	self int
}

func (g *gate) turn(reads bool) error {
	a := g.w.actors[g.self]
	if a.crashed {
		return errCrashed
	}
	g.w.parked <- parked{g.self, reads}
	<-g.w.wake[g.self]
	a.calls++
	if a.calls == a.crashAt {
		a.crashed = true
		return errCrashed
	}
	return nil
}

func (g *gate) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error) {
	if err := g.turn(true); err != nil {
		return nil, err
	}
	return g.w.api.Get(ctx, name, o)
}

func (g *gate) List(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	if err := g.turn(false); err != nil {
		return nil, err
	}
	return g.w.api.List(ctx, o)
}

func (g *gate) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions,
	sub ...string,
) (*corev1.Node, error) {
	if err := g.turn(false); err != nil {
		return nil, err
	}
	return g.w.api.Patch(ctx, name, pt, data, o, sub...)
}

// judge is a guard of one rule: some endpoint of every Service that the run touches stays.
func (w *world) judge(a *actor) Judge {
	fails := func(gone []string) bool {
		for _, on := range w.services {
			touched := slices.ContainsFunc(on, func(n string) bool { return slices.Contains(a.nodes, n) })
			if touched && !slices.ContainsFunc(on, func(n string) bool { return !slices.Contains(gone, n) }) {
				return true
			}
		}
		return false
	}
	return func(_ context.Context, e Earlier) error {
		if fails(a.nodes) {
			return errNone
		}
		if fails(append(e.Nodes(), a.nodes...)) {
			return &Conflict{Cause: errNone}
		}
		return nil
	}
}

// play lets all actors acquire their nodes and returns when none is left.
func (w *world) play(ctx context.Context) {
	w.clock = clocktesting.NewFakeClock(time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC))
	w.parked = make(chan parked)
	done := make(chan int)
	for i, a := range w.actors {
		w.wake = append(w.wake, make(chan time.Duration))
		g := &gate{w: w, self: i}
		c := &Claimer{Nodes: g, Clock: w.clock, Run: a.id, Holder: a.id + "@host", TakeOver: a.takeOver}
		c.sleep = func(_ context.Context, d time.Duration) error {
			if err := g.turn(false); err != nil {
				return err
			}
			w.clock.Step(d)
			return nil
		}
		go func() {
			_, _, a.err = c.Acquire(ctx, a.nodes, w.judge(a))
			done <- i
		}()
	}
	waiting := []parked{}
	for running, alive := len(w.actors), len(w.actors); alive > 0; {
		for ; running > 0; running-- {
			select {
			case i := <-w.parked:
				waiting = append(waiting, i)
			case <-done:
				alive--
			}
		}
		if alive == 0 {
			return
		}
		slices.SortFunc(waiting, func(x, y parked) int { return x.actor - y.actor })
		k := -1
		if w.disjoint {
			k = slices.IndexFunc(waiting, func(p parked) bool { return p.reads })
		}
		if k < 0 {
			k = w.choose(len(waiting))
		}
		next := waiting[k].actor
		waiting = slices.Delete(waiting, k, k+1)
		running = 1
		w.wake[next] <- 0
	}
}

// goesOn reports whether a run acquired its nodes and still holds each of them.
func (w *world) goesOn(a *actor) bool {
	if a.err != nil {
		return false
	}
	for _, n := range a.nodes {
		c, err := Of(w.api.node(n))
		if err != nil || c == nil || c.Run != a.id {
			return false
		}
	}
	return true
}

// check returns what is wrong with how the world ended.
func (w *world) check(before map[string]*corev1.Node) error {
	var going []*actor
	crashed := false
	for _, a := range w.actors {
		crashed = crashed || a.crashed
		if w.goesOn(a) {
			going = append(going, a)
		}
	}
	if len(going) == 0 && !crashed {
		return fmt.Errorf("nobody goes on: %v", w.errors())
	}
	var gone []string
	for _, a := range going {
		for _, n := range a.nodes {
			if slices.Contains(gone, n) {
				return fmt.Errorf("two runs hold %s", n)
			}
		}
		gone = append(gone, a.nodes...)
	}
	for _, on := range w.services {
		if !slices.ContainsFunc(on, func(n string) bool { return !slices.Contains(gone, n) }) {
			return fmt.Errorf("the runs that go on leave no endpoint: %v", gone)
		}
	}
	return w.checkNodes(before, going)
}

// checkNodes: what no run holds is as it was, and a crash leaves a claim and a cordon at most.
func (w *world) checkNodes(before map[string]*corev1.Node, going []*actor) error {
	for name, was := range before {
		is := w.api.node(name)
		c, err := Of(is)
		if err != nil {
			return err
		}
		var owner *actor
		for _, a := range w.actors {
			if c != nil && c.Run == a.id {
				owner = a
			}
		}
		switch {
		case owner != nil && slices.Contains(going, owner):
			if !is.Spec.Unschedulable || c.Phase != Granted {
				return fmt.Errorf("%s of %s: cordoned %v, phase %s", name, owner.id, is.Spec.Unschedulable, c.Phase)
			}
		case owner != nil && owner.err == nil:
			// It acquired its nodes and stood still until another run took one of them: as good as dead.
		case owner != nil && !owner.crashed && !slices.ContainsFunc(w.actors, func(a *actor) bool { return a.crashed || a.takeOver }):
			return fmt.Errorf("%s keeps the claim of %s, which lost: %w", name, owner.id, owner.err)
		case owner != nil:
			if diff := cmp.Diff(was.Labels, is.Labels); diff != "" {
				return fmt.Errorf("%s: a crash left more than a ticket: %s", name, diff)
			}
		default:
			is.ResourceVersion = was.ResourceVersion
			if diff := cmp.Diff(was, is, cmpopts.EquateEmpty()); diff != "" {
				return fmt.Errorf("%s is not as it was (-was +is): %s", name, diff)
			}
		}
	}
	return nil
}

func (w *world) errors() []error {
	var all []error
	for _, a := range w.actors {
		all = append(all, a.err)
	}
	return all
}

func snapshot(api *modelAPI) map[string]*corev1.Node {
	all := map[string]*corev1.Node{}
	for name := range api.nodes {
		all[name] = api.node(name)
	}
	return all
}

// everyOrder calls play with every sequence of choices, and returns how many there were.
func everyOrder(t *testing.T, play func(choose func(int) int) error) int {
	t.Helper()
	var path, options []int
	for count := 1; ; count++ {
		at := 0
		err := play(func(n int) int {
			if at == len(path) {
				path, options = append(path, 0), append(options, n)
			}
			at++
			return path[at-1]
		})
		if err != nil {
			t.Fatalf("order %v: %v", path, err)
		}
		for len(path) > 0 && path[len(path)-1]+1 == options[len(path)-1] {
			path, options = path[:len(path)-1], options[:len(path)-1]
		}
		if len(path) == 0 {
			return count
		}
		path[len(path)-1]++
	}
}

func TestEveryInterleaving(t *testing.T) {
	tests := map[string]struct {
		nodes    int
		services [][]string
		runs     [][]string
		crash    bool
		atLeast  int // interleavings: the test would be empty with fewer
	}{
		"two runs, conflict":             {2, [][]string{{"n1", "n2"}}, [][]string{{"n1"}, {"n2"}}, false, 20},
		"two runs, no conflict":          {3, [][]string{{"n1", "n2", "n3"}}, [][]string{{"n1"}, {"n2"}}, false, 20},
		"two runs, one crashes":          {2, [][]string{{"n1", "n2"}}, [][]string{{"n1"}, {"n2"}}, true, 50},
		"two and one, conflict":          {4, [][]string{{"n1", "n3"}, {"n2", "n4"}}, [][]string{{"n1", "n2"}, {"n3"}}, false, 30},
		"two and two, conflict":          {5, [][]string{{"n1", "n3"}, {"n2", "n5"}}, [][]string{{"n1", "n2"}, {"n3", "n4"}}, false, 35},
		"three runs, any two conflict":   {3, [][]string{{"n1", "n2"}, {"n2", "n3"}, {"n1", "n3"}}, [][]string{{"n1"}, {"n2"}, {"n3"}}, false, 1000},
		"three runs, all three conflict": {3, [][]string{{"n1", "n2", "n3"}}, [][]string{{"n1"}, {"n2"}, {"n3"}}, false, 1000},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			crashAt := []int{0}
			if tc.crash {
				crashAt = []int{1, 2, 3, 4, 5}
			}
			total := 0
			for _, at := range crashAt {
				total += everyOrder(t, func(choose func(int) int) error {
					w := &world{api: newModelAPI(plainNodes(tc.nodes)...), services: tc.services, choose: choose, disjoint: true}
					for i, nodes := range tc.runs {
						w.actors = append(w.actors, &actor{id: fmt.Sprintf("r%d", i), nodes: nodes})
					}
					w.actors[0].crashAt = at
					before := snapshot(w.api)
					w.play(t.Context())
					return w.check(before)
				})
			}
			t.Logf("%d interleavings", total)
			if total < tc.atLeast {
				t.Errorf("only %d interleavings: nothing was interleaved", total)
			}
		})
	}
}

func TestRandomInterleavings(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"n1", "n2", "n3", "n4"}
		some := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 3, rapid.ID[string])
		nodes := plainNodes(len(names))
		for _, n := range nodes {
			n.Spec.Unschedulable = rapid.Bool().Draw(rt, "cordoned before")
			if rapid.Bool().Draw(rt, "labelled before") {
				n.Labels = map[string]string{lbhooks.ExcludeLabel: rapid.SampledFrom([]string{"", "false", "true"}).Draw(rt, "value")}
			}
		}
		w := &world{
			api:      newModelAPI(nodes...),
			services: [][]string{{"n1", "n2", "n3", "n4"}},
			choose:   func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "next") },
		}
		for i := range rapid.IntRange(2, 3).Draw(rt, "runs") {
			w.actors = append(w.actors, &actor{
				id: fmt.Sprintf("r%d", i), nodes: some.Draw(rt, "nodes"),
				takeOver: rapid.IntRange(0, 9).Draw(rt, "take over") == 9,
				crashAt:  max(0, rapid.IntRange(-20, 8).Draw(rt, "crash at")),
			})
		}
		before := snapshot(w.api)
		w.play(t.Context())
		if err := w.check(before); err != nil {
			for _, a := range w.actors {
				rt.Logf("%s wants %v, take over %v, crashed %v: %v", a.id, a.nodes, a.takeOver, a.crashed, a.err)
			}
			rt.Fatal(err)
		}
	})
}
