package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
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
			return err
		}
		d.emit(SurgePending{Node: s.node.name, Workload: s.Title(), For: p.Why, Elapsed: now.Sub(start), Timeout: patience})
		if err := d.pauseAll(ctx, delay); err != nil {
			end(err, "")
			return err
		}
	}
}

// pauseAll waits, unless something about one of the nodes stands against going on.
func (d *run) pauseAll(ctx context.Context, delay time.Duration) error {
	for _, n := range d.nodes {
		if err := n.stop.Err(); err != nil {
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

func (d *run) unusedBy(ctx context.Context, ix view, key guard.Key) string {
	svc, ok := ix.Service(key)
	if !ok || !svc.External || svc.Rotation.Nobody || !svc.Rotation.Provable || svc.Rotation.Broken != "" {
		return ""
	}
	r := &svc.Rotation
	hook, known := d.Hooks.Hook(r.Hook)
	_, asserted := hook.(lbhooks.Assertable)
	raw, there := ix.Snapshot().RawService(key)
	if !known || !there {
		return ""
	}
	cover := guard.Cover(svc)
	why := ""
	for _, name := range cover.Nodes() {
		node, ok := ix.Snapshot().RawNode(name)
		if !ok || slices.Contains(d.opts.Nodes, name) {
			continue
		}
		moves := slices.ContainsFunc(r.Moves, func(m guard.Move) bool { return m.To == name })
		// What is said of a balancer that nothing else knows is not what it does: it is asked.
		if in := r.Seat(name).In; moves || in != guard.No && !asserted {
			return ""
		}
		proof, err := d.observe(ctx, hook, raw, node)
		if err != nil || !proof.Out && !proof.Idle {
			return ""
		}
		why = fmt.Sprintf("%s does not send to %s for %s yet: %s", r.Hook, name, key, proof.Evidence)
	}
	return why
}

// observe makes one observation of a balancer.
func (d *run) observe(ctx context.Context, hook lbhooks.Hook, svc *corev1.Service, node *corev1.Node) (lbhooks.Proof, error) {
	ctx, cancel := context.WithTimeout(ctx, lbhooks.DefaultCall)
	defer cancel()
	return hook.Prove(ctx, lbhooks.Target{Service: svc, Node: node})
}
