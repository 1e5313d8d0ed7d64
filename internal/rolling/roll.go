package rolling

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/surge"
)

// retryEvery is how often nodes that have to wait are looked at again while nothing ends.
const retryEvery = 5 * time.Second

// Roller carries out rolls. Its fields are set once, before the first call.
type Roller struct {
	// Runner has what the drain of each node needs; each gets a RunID of its own.
	*drain.Runner
	// Progress receives the events of the roll; those of the drains go to Emit. It may be called from several goroutines.
	Progress func(Event)
	// NewID makes an identity, for the claims of one node.
	NewID func() string
	// Environ is the environment of the command, to which NODE is added.
	Environ []string
}

// roll is one Roll. What is not said to be a node's own belongs to the goroutine of carryOut.
type roll struct {
	*Roller
	opts  Options
	marks marks
	state *state
	stop  *stopper // ends what must not be begun any more
	nodes map[string]*node
	order []string // of all nodes that were not done before
	ends  chan *node
	tried time.Time         // when nodes that wait were last looked at
	held  map[string]string // what was said last of nodes that wait
	blind time.Time         // since when the cluster cannot be read
}

// Roll takes every node through its steps, or goes on with a roll that an earlier run of the same command has left. The
// returned Result is never nil.
func (r *Roller) Roll(ctx context.Context, opts Options) *Result {
	started := r.Clock.Now()
	d := &roll{
		Roller: r, opts: opts, marks: marks{r.Client.CoreV1().Nodes()}, stop: newStopper(), nodes: map[string]*node{},
		ends: make(chan *node), held: map[string]string{},
	}
	release := d.stop.follow(r.Soft)
	defer release()
	err := d.run(ctx)
	res := d.result(err)
	res.Took = r.Clock.Since(started)
	return res
}

func (d *roll) run(ctx context.Context) error {
	if d.stop.interrupted() {
		return errInterrupted
	}
	var err error
	if d.state, err = d.open(ctx); err != nil {
		return err
	}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	var done []string
	for name, m := range d.state.marks {
		if m.Step == Done {
			done = append(done, name)
		}
	}
	slices.Sort(done)
	d.emit(Began{Roll: d.state.id, Resumed: d.state.resumed, AtOnce: d.opts.AtOnce, Order: d.order, Done: done})
	if err := d.carryOut(ctx); err != nil {
		return err
	}
	return d.complete(ctx)
}

// prepare judges every node that waits by itself and fixes the order: first those that an earlier run has left under way.
func (d *roll) prepare(ctx context.Context) error {
	var under, waiting []string
	for _, name := range d.opts.Nodes {
		switch m := d.state.marks[name]; {
		case d.state.nodes[name] == nil && !d.state.resumed:
			return &cluster.NotFound{Names: []string{name}}
		case d.state.nodes[name] == nil:
			d.emit(Warned{Text: fmt.Sprintf("node/%s is not there any more", name)})
		case m == nil:
			waiting = append(waiting, name)
		case m.Step != Done:
			under = append(under, name)
		}
	}
	slices.Sort(under)
	plans, err := d.Outlook(ctx, &d.opts, waiting)
	if err != nil {
		return err
	}
	if refused := plans.refused(); len(refused) > 0 && len(under) == 0 && d.opts.Drain.Surge == surge.Off {
		return &Refusal{Plans: refused, All: len(d.opts.Nodes)}
	}
	d.order = append(under, plans.Names()...)
	for _, name := range d.order {
		d.nodes[name] = newNode(d, name)
	}
	return nil
}

// carryOut begins nodes as soon as they may, until all are done or something stops the roll; then it waits for those that
// are under way.
func (d *roll) carryOut(ctx context.Context) error {
	ticker := d.Clock.NewTicker(retryEvery)
	defer ticker.Stop()
	stopped, over := d.stop.done, ctx.Done()
	for {
		d.fill(ctx)
		if len(d.underWay()) == 0 && (len(d.waiting()) == 0 || d.stop.err() != nil || ctx.Err() != nil) {
			return d.whatEnded(ctx)
		}
		select {
		case n := <-d.ends:
			d.finished(ctx, n)
		case <-ticker.C():
		case <-over:
			over = nil
		case <-stopped:
			stopped = nil
			d.emit(Stopping{Why: d.stop.err().Error()})
		}
	}
}

// fill begins nodes while more may be under way.
func (d *roll) fill(ctx context.Context) {
	for d.stop.err() == nil && ctx.Err() == nil && len(d.underWay()) < d.opts.AtOnce && len(d.waiting()) > 0 {
		n, err := d.next(ctx)
		if d.cannotSee(err) || n == nil {
			return
		}
		// One after another: of two rolls that begin with the same node, the one that comes second has begun nothing.
		switch n.err = n.take(ctx); {
		case n.err != nil:
			d.finished(ctx, n)
		case n.deleted:
			d.gone(n)
		default:
			n.begin(ctx)
		}
	}
}

// cannotSee reports whether the cluster could not be read before the next node. That is tried again for a while.
func (d *roll) cannotSee(err error) bool {
	switch {
	case err == nil:
		d.blind = time.Time{}
		return false
	case d.blind.IsZero():
		d.blind = d.Clock.Now()
		d.emit(Warned{Text: fmt.Sprintf("the cluster cannot be read before the next node: %v; trying on", err)})
	case d.Clock.Since(d.blind) >= d.opts.WaitTimeout:
		d.stop.end(fmt.Errorf("look at the cluster before the next node: %w", err))
	}
	d.tried = d.Clock.Now()
	return true
}

// finished takes in a node whose goroutine has ended.
func (d *roll) finished(ctx context.Context, n *node) {
	n.running = false
	d.tried = time.Time{}
	var notNow *notNow
	switch {
	case n.err == nil:
		n.err = d.settleDone(ctx, n)
		for _, name := range d.waiting() {
			d.nodes[name].refusedSince = time.Time{} // by what was away meanwhile, perhaps
		}
	case errors.As(n.err, &notNow):
		d.refusedNow(n, notNow)
		return
	}
	if n.err != nil {
		d.stop.end(fmt.Errorf("node %q: %w", n.name, n.err))
	}
}

// settleDone marks a node as done; the mark of the last one says that the roll is complete.
func (d *roll) settleDone(ctx context.Context, n *node) error {
	n.step, n.done = Done, true
	last := d.state.work == d.opts.work() && !slices.ContainsFunc(d.order, func(name string) bool { return !d.nodes[name].done })
	n.ended = d.Clock.Now()
	d.emit(Moved{Node: n.name, Step: Done, Took: n.ended.Sub(n.started)})
	if n.deleted {
		return nil
	}
	return ignoreGone(n.write(ctx, func(m *Mark) {
		m.Step, m.Complete, m.Ended, m.Services = Done, last, d.now(), nil
	}))
}

// gone is done with a node that was deleted before its turn.
func (d *roll) gone(n *node) {
	n.step, n.done, n.deleted = Done, true, true
	d.emit(Moved{Node: n.name, Step: Done, Gone: true})
}

// refusedNow puts a node that guard does not let go for the moment back among those that wait. When nothing else goes on,
// that ends after a time.
func (d *roll) refusedNow(n *node, why *notNow) {
	n.err, n.step = nil, Waiting
	n.notBefore = d.Clock.Now().Add(retryEvery)
	if n.refusedSince.IsZero() {
		n.refusedSince = d.Clock.Now()
	}
	if len(d.underWay()) == 0 && d.Clock.Since(n.refusedSince) >= d.opts.WaitTimeout {
		n.err = fmt.Errorf("after %s: %w", d.opts.WaitTimeout, why)
		d.stop.end(fmt.Errorf("node %q: %w", n.name, n.err))
	}
}

func (d *roll) underWay() []string {
	return d.names(func(n *node) bool { return n.running })
}

func (d *roll) waiting() []string {
	return d.names(func(n *node) bool { return !n.running && !n.done && n.err == nil })
}

// names lists the nodes of which a condition holds, in their order.
func (d *roll) names(holds func(*node) bool) []string {
	return slices.DeleteFunc(slices.Clone(d.order), func(name string) bool { return !holds(d.nodes[name]) })
}

// hold says once, and again when it changes, why a node waits.
func (d *roll) hold(name, why string) {
	if d.held[name] != why {
		d.held[name] = why
		d.emit(Held{Node: name, Why: why})
	}
}

func (r *Roller) emit(e Event) {
	if r.Progress != nil {
		r.Progress(e)
	}
}

func (r *Roller) now() *time.Time {
	t := r.Clock.Now().UTC().Truncate(time.Second)
	return &t
}

// pause waits, or less when the roll is to stop, and then says why.
func (d *roll) pause(ctx context.Context, t time.Duration) error {
	timer := d.Clock.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-d.Soft:
		return errInterrupted
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) { return maps.Keys(m) }
