package drain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
)

const (
	surgePoll    = 200 * time.Millisecond
	surgeMaxPoll = 2 * time.Second
	// refusedFor is how long the API server may refuse to make the replica: webhooks restart, quotas stay.
	refusedFor = 10 * time.Second
	// judgedWithin bounds the time from a replica that is Ready to a plan that counts it: slices and budgets follow soon.
	judgedWithin = 30 * time.Second
)

// awaitSurge waits until the replica is Ready on a node that stays.
func (d *run) awaitSurge(ctx context.Context, s *raisedSurge) error {
	b, start := d.bringer(), d.Clock.Now()
	end := d.step("surged", s.node.name, strings.Join(s.services, ","))
	patience := d.opts.Timeout
	if patience <= 0 {
		patience = time.Duration(b.Patience(ctx, s.Raised)) * time.Second
	}
	if by := d.replacedBy(); !by.IsZero() {
		patience = min(patience, by.Sub(start))
	}
	refused := time.Time{}
	for delay := surgePoll; ; delay = min(delay+delay/2, surgeMaxPoll) {
		p, err := b.Look(ctx, s.Raised, d.opts.Nodes)
		now := d.Clock.Now()
		switch {
		case err != nil && !passing(err):
			end(err, "")
			return err
		case err == nil && p.Ready:
			s.on = p.Nodes
			end(nil, strings.Join(p.Nodes, ","))
			d.emit(Surged{Node: s.node.name, Workload: s.Title(), On: p.Nodes, After: now.Sub(start)})
			return nil
		case !p.Refused:
			refused = time.Time{}
		case refused.IsZero():
			refused = now
		}
		if now.Sub(start) > patience || !refused.IsZero() && now.Sub(refused) > refusedFor {
			err := &surge.Failed{Workload: s.Title(), Why: p.Why, After: now.Sub(start)}
			end(err, "")
			if s.node.isFinished() {
				d.emit(Warned{Text: err.Error()})
				return nil
			}
			return err
		}
		d.emit(SurgePending{Node: s.node.name, Workload: s.Title(), For: p.Why, Elapsed: now.Sub(start), Timeout: patience})
		if err := d.pauseAll(ctx, delay); err != nil {
			end(err, "")
			return err
		}
	}
}

// pauseAll waits, unless something about one of the nodes stands against going on. One that was deleted is done: what comes
// in the place of its pods is waited for all the same.
func (d *run) pauseAll(ctx context.Context, delay time.Duration) error {
	for _, n := range d.nodes {
		if n.isFinished() {
			continue
		}
		if err := n.unlessDeleted(n.stop.Err()); err != nil {
			return err
		}
	}
	return d.stop.pause(ctx, d.Clock, delay)
}

// judgeSurged judges the drain anew on what is there, without anything that is only to come, until it is not refused and
// the balancers send to the replicas or are about to.
func (d *run) judgeSurged(ctx context.Context) error {
	start := d.Clock.Now()
	within := max(judgedWithin, d.opts.HookTimeout)
	if cutoff := d.firstCutoff(); !cutoff.IsZero() {
		within = min(within, cutoff.Sub(start))
	}
	for delay := surgePoll; ; delay = min(delay*2, surgeMaxPoll) {
		if !slices.ContainsFunc(d.nodes, func(n *nodeRun) bool { return !n.isFinished() }) {
			return nil // all were deleted
		}
		err := d.adoptSurged(ctx, start)
		if err == nil || !mayCome(err) || d.Clock.Since(start) > within {
			return err
		}
		if err := d.pauseAll(ctx, delay); err != nil {
			return err
		}
	}
}

// mayCome reports whether what stands against a plan with replacements may pass by itself.
func mayCome(err error) bool {
	var refusal *Refusal
	var failed *surge.Failed
	return errors.As(err, &refusal) || errors.As(err, &failed) || passing(err)
}

// adoptSurged takes the plan as it is with the replacements there for the one that is carried out, unless something stands
// against it.
func (d *run) adoptSurged(ctx context.Context, start time.Time) error {
	snapshot, err := d.loadAgain(ctx)
	if err != nil {
		return err
	}
	ix := d.index(snapshot, d.opts.Nodes)
	req := d.Runner.request(d.opts, d.opts.Nodes)
	req.Cluster = d.places
	plan := guard.Plan(ix, req)
	plan.Surges = surge.Surges(d.surges)
	if plan.Refused() {
		return &Refusal{Plan: &plan, Then: "judged again with the replacement there"}
	}
	if why := d.unused(ctx, ix); why != "" {
		return &surge.Failed{Workload: d.raised[0].Title(), Why: why, After: d.Clock.Since(start)}
	}
	d.surges = nil
	d.adopt(&plan, snapshot)
	return nil
}

// unused returns why the balancer of a Service does not send to any node with its replacement, and will not once the drained
// node is out; "" where it does, where it will, or where nobody can tell.
func (d *run) unused(ctx context.Context, ix view) string {
	for _, s := range d.standing() {
		for _, name := range s.services {
			if why := d.unusedBy(ctx, ix, keyOf(name)); why != "" {
				return why
			}
			if why := d.unknownTo(ctx, ix, keyOf(name), s.on); why != "" {
				return why
			}
		}
	}
	return ""
}
