package drain

import (
	"context"
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
	refused := time.Time{}
	for delay := surgePoll; ; delay = min(delay+delay/2, surgeMaxPoll) {
		p, err := b.Look(ctx, s.Raised, d.opts.Nodes)
		now := d.Clock.Now()
		switch {
		case err != nil && !passing(err):
			end(err, "")
			return err
		case err == nil && p.Ready:
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
	found := d.surges
	d.surges = nil
	start := d.Clock.Now()
	within := max(judgedWithin, d.opts.HookTimeout)
	for delay := surgePoll; ; delay = min(delay*2, surgeMaxPoll) {
		snapshot, err := d.loadAgain(ctx)
		if err != nil && !passing(err) {
			return err
		}
		var refusal *guard.DrainPlan
		unused := ""
		if err == nil {
			ix := d.index(snapshot, d.opts.Nodes)
			req := d.request(d.opts, d.opts.Nodes)
			req.Cluster = d.places
			plan := guard.Plan(ix, req)
			plan.Surges = surge.Surges(found)
			if plan.Refused() {
				refusal = &plan
			} else if unused = d.unused(ctx, ix); unused == "" {
				d.adopt(&plan, snapshot)
				return nil
			}
		}
		if d.Clock.Since(start) > within {
			switch {
			case refusal != nil:
				return &Refusal{Plan: refusal, Then: "judged again with the replacement there"}
			case unused != "":
				return &surge.Failed{Workload: d.raised[0].Title(), Why: unused, After: d.Clock.Since(start)}
			}
			return err
		}
		if err := d.pauseAll(ctx, delay); err != nil {
			return err
		}
	}
}

// unused returns why the balancer of a Service does not send to any node with its replacement, and will not once the drained
// node is out; "" where it does, where it will, or where nobody can tell.
func (d *run) unused(ctx context.Context, ix view) string {
	for _, s := range d.standing() {
		for _, name := range s.services {
			if why := d.unusedBy(ctx, ix, keyOf(name)); why != "" {
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
		if in := r.Seat(name).In; in != guard.No || moves {
			return ""
		}
		proof, err := d.observe(ctx, hook, raw, node)
		if err != nil || !proof.Out {
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
