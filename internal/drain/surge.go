package drain

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
)

// raisedSurge is a replica that this run has started, or taken over.
type raisedSurge struct {
	*surge.Raised
	node     *nodeRun           // whose claim remembers it
	pods     map[types.UID]bool // of the workload, on the nodes of the run
	services []string           // that they serve
	on       []string           // the nodes on which the workload is Ready and stays
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
		if err := s.node.goWithout(s.Title(), d.awaitSurge(soft, s)); err != nil {
			return d.softly(err)
		}
	}
	if err := d.lowerDeleted(soft); err != nil {
		return d.softly(err)
	}
	standing = d.standing()
	if len(standing) == 0 || slices.ContainsFunc(d.nodes, func(n *nodeRun) bool { return n.tooLate() != nil }) {
		return nil // the plan stands as it was made, with the deadline over it
	}
	if err := standing[0].node.goWithout(standing[0].Title(), d.judgeSurged(soft)); err != nil {
		return d.softly(err)
	}
	return d.softly(d.lowerDeleted(soft))
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
			if s := d.raisedBy(l); s != nil && len(s.pods) == 0 {
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
		return n.unlessDeleted(err)
	}
	end := d.step("surge", n.name, strings.Join(services, ","))
	s := &raisedSurge{node: n, services: services}
	err = n.persist(ctx, func(ctx context.Context) (err error) {
		if s.pods, err = b.On(ctx, l.Workload, d.opts.Nodes); err == nil {
			s.Raised, err = b.Raise(ctx, l, d.opts.Nodes)
		}
		return err
	})
	if err != nil {
		end(err, "")
		return n.goWithout(l.Title(), &surge.Failed{Workload: l.Title(), Why: err.Error()})
	}
	d.mu.Lock()
	d.raised = append(d.raised, s)
	d.mu.Unlock()
	end(nil, s.Words())
	d.emit(Surging{Node: n.name, Workload: s.Title(), What: s.Words(), Taken: s.Taken})
	return nil
}
