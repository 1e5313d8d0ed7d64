package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
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

// raisedSurge is a replica that this run has started, or taken over.
type raisedSurge struct {
	*surge.Raised
	node     *nodeRun           // whose claim remembers it
	pods     map[types.UID]bool // of the workload, on the nodes of the run
	services []string           // that they serve
	lowered  bool               // guarded by run.mu
}

// request asks the guard about some nodes, with the replicas that are only to come.
func (d *run) request(opts Options, nodes []string) guard.Request {
	req := d.Runner.request(opts, nodes)
	req.Surges = surge.Surges(d.surges)
	return req
}

func (r *Runner) bringer() *surge.Bringer {
	return &surge.Bringer{Client: r.Client, Dynamic: r.Dynamic, Clock: r.Clock, Run: r.RunID}
}

// findSurges completes a plan by the replicas that are started first, or says where one would help.
func (d *run) findSurges(ctx context.Context, plan *guard.DrainPlan, snapshot *cluster.Snapshot) (*guard.DrainPlan, error) {
	if d.Dynamic == nil {
		return plan, nil
	}
	ix := snapshot.Index(d.Hooks, d.opts.Nodes)
	q := surge.Question{Plan: plan, Index: ix, Places: d.places, Scope: d.opts.Surge, Run: d.RunID}
	plan, found, err := surge.Complete(ctx, d.bringer().Live(), q, func(first []guard.Surge) guard.DrainPlan {
		req := d.request(d.opts, d.opts.Nodes)
		req.Cluster, req.Surges = d.places, first
		return guard.Plan(ix, req)
	})
	d.surges = found
	return plan, err
}

// bringReplacements starts the replicas of the plan, waits until each is Ready, listed and used by its balancer, and judges
// anew. What earlier runs left on these nodes is taken over.
func (d *run) bringReplacements(ctx context.Context) error {
	if d.Dynamic == nil {
		return nil
	}
	soft, cancel := d.stop.context(ctx)
	defer cancel()
	if err := d.takeUpSurges(soft); err != nil {
		return d.softly(err)
	}
	for i := range d.surges {
		f := &d.surges[i]
		if !f.Possible() || d.raisedBy(f.Lever) != nil {
			continue
		}
		if err := d.raise(soft, f.Lever, f.Services); err != nil {
			return d.softly(err)
		}
	}
	standing := d.standing()
	if len(standing) == 0 {
		return nil
	}
	for _, s := range standing {
		if err := d.awaitSurge(soft, s); err != nil {
			return d.softly(err)
		}
	}
	return d.softly(d.judgeSurged(soft))
}

// softly names the reason for which the run is to stop, where that is why a call failed.
func (d *run) softly(err error) error {
	if err != nil && d.stop.Err() != nil {
		return errors.Join(d.stop.Err(), err)
	}
	return err
}

func (d *run) raisedBy(l surge.Lever) *raisedSurge {
	for _, s := range d.raised {
		if s.Lever == l {
			return s
		}
	}
	return nil
}

// standing are the surges that are not lowered.
func (d *run) standing() []*raisedSurge {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.raised), func(s *raisedSurge) bool { return s.lowered })
}

// takeUpSurges takes over what the claims of earlier runs remember: a replica whose pod is still to go, as its own; one that
// has done its work is taken back at once.
func (d *run) takeUpSurges(ctx context.Context) error {
	for _, n := range d.nodes {
		for _, set := range n.held.Claim().Set {
			l, ok := surge.ParseSet(set)
			if !ok {
				continue
			}
			mark, err := d.bringer().Standing(ctx, l)
			if err != nil {
				return err
			}
			if mark == nil {
				if err := n.forgetSurge(ctx, l); err != nil {
					return err
				}
				continue
			}
			if err := d.raiseOn(ctx, n, l, d.servicesOf(l)); err != nil {
				return err
			}
			if s := d.raisedBy(l); len(s.pods) == 0 {
				if err := n.lower(ctx, s, false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// servicesOf are the Services for which a lever was found.
func (d *run) servicesOf(l surge.Lever) []string {
	for i := range d.surges {
		if d.surges[i].Lever == l {
			return d.surges[i].Services
		}
	}
	return nil
}

// raise starts a replica and has the claim of the node remember it on which a pod of the workload is.
func (d *run) raise(ctx context.Context, l surge.Lever, services []string) error {
	for _, n := range d.nodes {
		on, err := d.bringer().On(ctx, l.Workload, []string{n.name})
		if err != nil {
			return err
		}
		if len(on) > 0 {
			return d.raiseOn(ctx, n, l, services)
		}
	}
	return nil // its pods have gone meanwhile
}

func (d *run) raiseOn(ctx context.Context, n *nodeRun, l surge.Lever, services []string) error {
	b := d.bringer()
	err := n.change(ctx, func(ctx context.Context) error {
		return n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Add(l.Set(), "", false) })
	})
	if err != nil {
		return err
	}
	end := d.step("surge", n.name, strings.Join(services, ","))
	raised, err := b.Raise(ctx, l, d.opts.Nodes)
	if err != nil {
		end(err, "")
		return &surge.Failed{Workload: l.Title(), Why: err.Error()}
	}
	s := &raisedSurge{Raised: raised, node: n, services: services}
	if s.pods, err = b.On(ctx, l.Workload, d.opts.Nodes); err != nil {
		end(err, "")
		return err
	}
	d.mu.Lock()
	d.raised = append(d.raised, s)
	d.mu.Unlock()
	end(nil, raised.Words())
	d.emit(Surging{Node: n.name, Workload: s.Title(), What: raised.Words(), Taken: raised.Taken})
	return nil
}

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

// surgeOf returns the surge that the eviction of a pod ends; nil when there is none, or when it is being ended.
func (d *run) surgeOf(uid types.UID) *raisedSurge {
	for _, s := range d.standing() {
		if s.pods[uid] {
			return s
		}
	}
	return nil
}

// used takes a replica back as soon as the eviction of a pod of its workload is accepted: the ReplicaSet is to have as many
// as before, and the one that it starts for the evicted pod meanwhile is not Ready, so that it goes first.
func (q *queue) used(ctx context.Context, uid types.UID) {
	s := q.n.surgeOf(uid)
	if s == nil {
		return
	}
	q.spawn(func() func(context.Context) {
		err := q.n.lower(ctx, s, true)
		return func(context.Context) {
			if err != nil && q.n.stop.Err() == nil {
				q.n.emit(Warned{Text: err.Error() + "; trying again at the end"})
			}
		}
	})
}

// lower takes a replica back and has the claim forget it. evicted: a pod of the workload is on its way out, so that the
// ReplicaSet has a fresh one to take; else the one goes that is missed least.
func (n *nodeRun) lower(ctx context.Context, s *raisedSurge, evicted bool) error {
	n.run.mu.Lock()
	begun := s.lowered
	s.lowered = true
	n.run.mu.Unlock()
	if begun {
		return nil
	}
	end := n.step("unsurge", n.name, strings.Join(s.services, ","))
	err := n.persist(ctx, func(ctx context.Context) error { return n.unraise(ctx, s.Lever, n.name, evicted) })
	if err == nil {
		err = s.node.forgetSurge(ctx, s.Lever)
	}
	end(err, s.Title())
	if err == nil {
		return nil
	}
	n.run.mu.Lock()
	s.lowered = false
	n.run.mu.Unlock()
	return fmt.Errorf("take the replica of %s back: %w", s.Title(), err)
}

// unraise puts a number back, on behalf of a node.
func (r *Runner) unraise(ctx context.Context, l surge.Lever, node string, evicted bool) error {
	b := r.bringer()
	var victim *corev1.Pod
	if !evicted {
		snapshot, err := r.Load(ctx, []string{node})
		if err != nil {
			return err
		}
		if victim, err = b.Victim(ctx, l, snapshot.Index(r.Hooks, []string{node})); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	lowered, err := b.Lower(ctx, l, victim)
	if err != nil {
		return err
	}
	if lowered.Note != "" {
		r.emit(Warned{Text: lowered.Note})
	}
	if lowered.Back {
		r.emit(Unsurged{Node: node, Workload: l.Title()})
	}
	return nil
}

// forgetSurge has the claim of a node forget a surge that no longer stands.
func (n *nodeRun) forgetSurge(ctx context.Context, l surge.Lever) error {
	err := n.change(ctx, func(ctx context.Context) error {
		return n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Remove(l.Set()) })
	})
	if errors.Is(err, errNodeDeleted) {
		return nil
	}
	return err
}

// lowerRest takes back the replicas that no eviction of this node has ended: their pods went otherwise.
func (n *nodeRun) lowerRest(ctx context.Context) error {
	for _, s := range n.standing() {
		if s.node != n {
			continue
		}
		if err := n.lower(ctx, s, false); err != nil {
			return err
		}
	}
	return nil
}

// surgedFor counts the replicas behind a Service that will be taken back.
func (d *run) surgedFor(key guard.Key) int {
	count := 0
	for _, s := range d.standing() {
		if slices.Contains(s.services, key.String()) {
			count++
		}
	}
	return count
}

// hopeless reports whether a run ends because a replica did not come, before it changed anything but its claims and its
// replicas: then nothing is kept.
func (d *run) hopeless(err error) bool {
	var failed *surge.Failed
	var refusal *Refusal
	return (errors.As(err, &failed) || errors.As(err, &refusal)) && d.stop.Err() == nil && d.begunNothing()
}

// begunNothing reports whether no node was withdrawn from anything, by this run or an earlier one.
func (d *run) begunNothing() bool {
	return !slices.ContainsFunc(d.nodes, func(n *nodeRun) bool {
		c := n.held.Claim()
		return n.held.Was != nil && len(n.held.Was.Services) > 0 || len(c.Services) > 0 || n.evictedCount() > 0
	})
}
