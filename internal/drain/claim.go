package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

func (r *Runner) claimer() *claim.Claimer {
	return &claim.Claimer{Nodes: r.Client.CoreV1().Nodes(), Clock: r.Clock, Run: r.RunID, Holder: r.Holder}
}

// acquire claims and cordons every node of the run, judged on facts that were read after the ticket.
func (d *run) acquire(ctx context.Context) error {
	end := d.step("claim", "", "")
	c := d.claimer()
	c.TakeOver = d.opts.TakeOver
	c.Known = func(name string) (*corev1.Node, bool) {
		_, newest := d.current()
		return newest.RawNode(name)
	}
	c.Waiting = func(node string, other claim.Claim) {
		d.emit(Warned{Text: fmt.Sprintf("node/%s is claimed by run %s of %s; watching for up to %s whether that run lives",
			node, other.Run, other.Holder, claim.DeadAfter)})
	}
	soft, cancel := d.stop.context(ctx)
	defer cancel()
	held, earlier, err := c.Acquire(soft, d.opts.Nodes, d.judge)
	if err != nil {
		if d.stop.Err() != nil {
			err = errors.Join(d.stop.Err(), err)
		}
		end(err, "")
		return err
	}
	d.earlier = earlier
	for _, name := range d.opts.Nodes {
		h := held[slices.IndexFunc(held, func(h *claim.Held) bool { return h.Name() == name })]
		d.nodes = append(d.nodes, newNodeRun(d, h))
		if h.Was != nil {
			d.emit(Resumed{Node: name, Run: h.Was.Run, Holder: h.Was.Holder, Phase: string(h.Was.Phase)})
		}
		d.emit(Cordoned{Node: name, Already: h.AlreadyCordoned})
	}
	end(nil, "")
	return nil
}

// judge asks the guard on fresh facts about this run's nodes beside those of earlier tickets.
func (d *run) judge(ctx context.Context, earlier claim.Earlier) error {
	d.earlier = earlier
	snapshot, err := d.Load(ctx, d.opts.Nodes)
	if err != nil {
		return err
	}
	req := d.request(d.opts, d.opts.Nodes)
	req.Cluster = d.places
	plan := guard.Plan(d.index(snapshot, d.opts.Nodes), req)
	both := unique(append(slices.Clone(d.opts.Nodes), earlier.Nodes()...))
	together := &plan
	if len(both) > len(d.opts.Nodes) {
		p := guard.Plan(d.index(snapshot, both), d.request(d.opts, both))
		together = &p
	}
	if !plan.Refused() && !unsafeFor(together, &plan) {
		d.adopt(&plan, snapshot)
		return nil
	}
	// Whose fault is it? Without any claim of others the nodes may be fine.
	ix := view{snapshot.Index(d.Hooks, d.opts.Nodes), func(c *guard.Claim) bool { return c.Run == d.RunID }}
	alone := guard.Plan(ix, d.request(d.opts, d.opts.Nodes))
	refusal := &Refusal{Plan: &plan}
	if !plan.Refused() {
		refusal.Plan = together
	}
	if alone.Refused() || len(earlier.Tickets) == 0 {
		return refusal
	}
	return &claim.Conflict{Cause: refusal}
}

// unsafeFor reports whether a plan for more nodes is unsafe for a Service that the plan at hand takes an endpoint from.
func unsafeFor(together, mine *guard.DrainPlan) bool {
	blocked := func(fs []guard.Finding) bool {
		return slices.ContainsFunc(fs, func(f guard.Finding) bool { return f.Severity == guard.Block && !f.Accepted })
	}
	for i := range together.Services {
		key := together.Services[i].Key()
		if blocked(together.Services[i].Findings) &&
			slices.ContainsFunc(mine.Services, func(s guard.ServicePlan) bool { return s.Key() == key && len(s.Nodes) > 0 }) {
			return true
		}
	}
	for i := range together.Withdraw {
		key := together.Withdraw[i].Key()
		if blocked(together.Withdraw[i].Findings) &&
			slices.ContainsFunc(mine.Withdraw, func(e guard.Entry) bool { return e.Key() == key }) {
			return true
		}
	}
	return false
}

// renewAll shows for every claimed node that the run lives, and stops the work on a node whose claim or state somebody
// changed. The returned function ends it.
func (d *run) renewAll(ctx context.Context) func() {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	following, stopFollowing := context.WithCancel(ctx)
	for _, n := range d.nodes {
		wg.Go(func() { n.orEnd(func() { n.follow(following) }) })
	}
	wg.Go(func() {
		ticker := d.Clock.NewTicker(claim.RenewEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C():
			case <-quit:
				return
			case <-ctx.Done():
				return
			}
			for _, n := range d.nodes {
				if !n.isFinished() {
					n.orEnd(func() { n.renew(ctx) })
				}
			}
		}
	})
	return func() { close(quit); stopFollowing(); wg.Wait() }
}

// orEnd calls what watches over the node's claim, and ends the work on the node if that panics: the gate, and the run's other
// nodes, go on.
func (n *nodeRun) orEnd(watches func()) {
	if err := safely.Call(func() error { watches(); return nil }); err != nil {
		n.stop.end(err)
	}
}

// renew ends the work on a node when its claim is lost or the node is not as the run needs it. Failures of the API that
// may pass are left to the next time: a claim that is not renewed may be taken over, and that is noticed.
func (n *nodeRun) renew(ctx context.Context) {
	if err := nodeError(n.held.Renew(ctx)); definite(err) {
		n.stop.end(err)
	}
}
