package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// run is one Drain.
type run struct {
	*Runner
	opts    Options
	emptied bool     // others evict the pods: the run only withdraws
	stop    *stopper // ends the run softly
	started time.Time
	earlier claim.Earlier
	places  *placement.Cluster    // where pods can be placed, as the first look saw it; nil when that was not read
	proxies map[string]*nodeProxy // of nodes with replacements, by name

	mu       sync.Mutex
	plan     *guard.DrainPlan // the one that is carried out
	snapshot *cluster.Snapshot
	steps    []guard.Step
	nodes    []*nodeRun
	reading  singleflight.Group
	raised   []*raisedSurge
	surges   []surge.Found // of the plan; nil once they are there
}

// Drain carries out a run: every node of it is claimed or none, and Done means that each of them may be switched off.
// The returned Result is never nil.
func (r *Runner) Drain(ctx context.Context, opts Options) *Result {
	opts.Nodes = unique(opts.Nodes)
	if opts.Deadline > 0 {
		opts.Parallel, opts.Flags.Deadline = true, true // the nodes go at the same time
	}
	d := &run{Runner: r, opts: opts, stop: newStopper(), started: r.Clock.Now()}
	release := d.obeySoft()
	defer release()
	err := d.carryOut(ctx)
	if ctx.Err() != nil && err != nil {
		err = errors.Join(errInterrupted, err)
	}
	return d.result(err)
}

func (d *run) carryOut(ctx context.Context) error {
	plan, snapshot, err := d.Plan(ctx, d.opts)
	if err != nil {
		return err
	}
	d.places = snapshot.Placement()
	if note := snapshot.PlacementNote(); note != "" {
		d.emit(Warned{Text: note})
	}
	if plan, err = d.findSurges(ctx, plan, snapshot); err != nil {
		return err
	}
	d.adopt(plan, snapshot)
	d.emit(Planned{Plan: plan})
	if plan.Refused() {
		return &Refusal{Plan: plan}
	}
	switch {
	case d.opts.DryRun == DryRunClient:
		return nil
	case d.stop.Err() != nil:
		return fmt.Errorf("%w, nothing changed", d.stop.Err())
	case d.opts.DryRun == DryRunServer:
		return d.dryRun(ctx)
	}
	if err := d.acquire(ctx); err != nil {
		return err
	}
	return d.drainAll(ctx)
}

// drainAll drains the claimed nodes, one after another unless the run is parallel, and cleans up after those that failed.
func (d *run) drainAll(ctx context.Context) error {
	stopRenewing := d.renewAll(ctx)
	var all []error
	hopeless := false
	if err := d.bringReplacements(ctx); err != nil {
		all, hopeless = []error{err}, d.hopeless(err)
	} else if d.opts.Parallel {
		all = d.sideBySide(ctx)
	} else {
		all = d.oneByOne(ctx)
	}
	stopRenewing()
	for _, n := range d.nodes {
		if n.finished {
			if n.deleted {
				all = append(all, n.lowerRest(ctx))
			}
			continue
		}
		if d.opts.Rollback || hopeless || outcome(errors.Join(all...), true, d.evictedAny()) == Failed {
			all = append(all, n.rollback(ctx))
		} else {
			n.end(ctx)
		}
	}
	return errors.Join(all...)
}

// oneByOne stops at the first node that does not end well: the next one is begun only when every Service is covered.
func (d *run) oneByOne(ctx context.Context) []error {
	for i, n := range d.nodes {
		if n.isFinished() {
			continue // deleted before its turn
		}
		if i > 0 {
			n.started = n.Clock.Now()
			if err := n.unlessDeleted(n.refresh(ctx)); err != nil {
				return []error{err}
			}
			if n.isFinished() {
				continue
			}
		}
		if err := n.drain(ctx); err != nil {
			return []error{err}
		}
		if i == len(d.nodes)-1 && !d.opts.WaitReplacements {
			break
		}
		if err := n.waitReplacements(ctx); err != nil {
			return []error{fmt.Errorf("after node %q: %w", n.name, err)}
		}
	}
	return nil
}

func (d *run) sideBySide(ctx context.Context) []error {
	all := make([]error, len(d.nodes))
	var g errgroup.Group
	for i, n := range d.nodes {
		if n.isFinished() {
			continue // deleted before its turn
		}
		g.Go(func() error {
			err := n.drain(ctx)
			if err == nil && d.opts.WaitReplacements {
				err = n.waitReplacements(ctx)
			}
			all[i] = err
			return nil
		})
	}
	_ = g.Wait() // every error is in all
	return all
}

// adopt makes a plan the one that is carried out.
func (d *run) adopt(plan *guard.DrainPlan, snapshot *cluster.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan, d.snapshot = plan, snapshot
}

func (d *run) current() (*guard.DrainPlan, *cluster.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan, d.snapshot
}

// obeySoft ends the run softly when the Runner's Soft is closed; the returned function stops listening.
func (d *run) obeySoft() func() {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-d.Soft:
			d.stop.end(errInterrupted)
		case <-quit:
		}
	}()
	// A signal that came before the run is obeyed before its first step.
	select {
	case <-d.Soft:
		d.stop.end(errInterrupted)
	default:
	}
	return func() { close(quit); <-done }
}

func (r *Runner) emit(e Event) {
	if r.Emit != nil {
		r.Emit(e)
	}
}

func unique(names []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// step notes what a run did; the returned function ends it.
func (d *run) step(name, node, service string) func(err error, evidence string) {
	started := d.Clock.Now().UTC()
	return func(err error, evidence string) {
		s := guard.Step{
			Name: name, Node: node, Service: service, Started: started, Ended: d.Clock.Now().UTC(),
			Outcome: stepOutcome(err), Evidence: evidence,
		}
		if err != nil && evidence == "" {
			s.Evidence = err.Error()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.steps = append(d.steps, s)
	}
}

func compareSteps(a, b guard.Step) int {
	return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Service, b.Service))
}
