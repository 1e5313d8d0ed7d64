package drain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// WithdrawOptions are the withdrawal of a node that somebody else empties.
type WithdrawOptions struct {
	Node           string
	HookTimeout    time.Duration // of each proof
	AcceptUnproven []string      // as --accept-unproven: a time is waited for in place of a proof
}

// HeldByOthers says that a node bears the claim of another run; nothing changed. Its claim is that run's and, once it is
// dead, people's.
type HeldByOthers struct {
	Node   string
	Run    string
	Holder string
	Ended  bool
}

func (e *HeldByOthers) Error() string {
	if e.Ended {
		return fmt.Sprintf("node %q is claimed by run %s of %s, which ended: safedrain %s goes on, safedrain uncordon %s undoes it",
			e.Node, e.Run, e.Holder, e.Node, e.Node)
	}
	return fmt.Sprintf("node %q is claimed by run %s of %s", e.Node, e.Run, e.Holder)
}

// Withdraw takes a node out of its balancers and evicts nothing: a ticket as every drain takes it, the withdrawals, their
// proofs and settle times. The claim says of each Service when its pods may go, and stays, ended, until it is returned.
// What an earlier Withdraw of the same run released stays released.
//
// Done means that every Service released the node, or that none needs to. A node that may not leave is a *Refusal or
// *claim.LostTo, and nothing changed; one that others hold is *HeldByOthers. The Result is never nil.
func (r *Runner) Withdraw(ctx context.Context, opts WithdrawOptions) *Result {
	d := &run{Runner: r, emptied: true, stop: newStopper(), started: r.Clock.Now(), opts: Options{
		Nodes: []string{opts.Node}, GracePeriod: -1, HookTimeout: opts.HookTimeout, DryRun: DryRunNone,
		// No pod is evicted, so no budget and no kind of pod stands against it.
		Flags: guard.Flags{
			IgnoreDaemonSets: true, DeleteEmptyDirData: true, Force: true, DisableEviction: true,
			AcceptUnproven: opts.AcceptUnproven,
		},
	}}
	defer d.obeySoft()()
	err := d.takeOut(ctx, opts.Node)
	if ctx.Err() != nil && err != nil {
		err = errors.Join(errInterrupted, err)
	}
	return d.result(err)
}

func (d *run) takeOut(ctx context.Context, node string) error {
	plan, snapshot, err := d.Plan(ctx, d.opts)
	if err != nil {
		return err
	}
	d.adopt(plan, snapshot)
	if err := d.othersHold(snapshot, node); err != nil {
		return err
	}
	d.emit(Planned{Plan: plan})
	if plan.Refused() {
		return &Refusal{Plan: plan}
	}
	if !d.leavesAnything(plan, snapshot, node) {
		return nil
	}
	if err := d.acquire(ctx); err != nil {
		return err
	}
	n := d.nodes[0]
	stopRenewing := d.renewAll(ctx)
	defer n.stop.follow(d.stop)()
	n.started = d.Clock.Now()
	err = n.unlessDeleted(n.vacate(ctx))
	stopRenewing()
	if err != nil {
		n.end(ctx)
	}
	return err
}

// othersHold returns *HeldByOthers when the claim on a node is another run's.
func (d *run) othersHold(snapshot *cluster.Snapshot, name string) error {
	node, ok := snapshot.RawNode(name)
	if !ok {
		return fmt.Errorf("node %q not found", name)
	}
	c, err := claim.Of(node)
	if err != nil || c == nil || c.Run == d.RunID {
		return err
	}
	return &HeldByOthers{Node: name, Run: c.Run, Holder: c.Holder, Ended: !c.Live()}
}

// leavesAnything reports whether a plan has something to withdraw, or an earlier withdrawal of this run is to be ended.
func (d *run) leavesAnything(plan *guard.DrainPlan, snapshot *cluster.Snapshot, name string) bool {
	node, _ := snapshot.RawNode(name)
	if c, err := claim.Of(node); err == nil && c != nil {
		return true
	}
	n := &nodeRun{run: d, name: name}
	for i := range plan.Services {
		if s := &plan.Services[i]; n.affected(s) || n.barred(s) {
			return true
		}
	}
	return len(plan.Withdraw) > 0
}

// vacate takes the node out for each Service that has not released it yet. One that cannot be left holds up no other.
func (n *nodeRun) vacate(ctx context.Context) error {
	plan, _ := n.current()
	all, err := n.departures(plan)
	if err != nil {
		return err
	}
	var departures []*departure
	for _, dep := range all {
		if n.released(dep) {
			continue
		}
		if dep.way == wayHold {
			// A hold ends with the run that evicts the pods; here others do.
			dep.hold = nil
			n.unproven(dep)
		}
		departures = append(departures, dep)
	}
	if err := n.withdraw(ctx, departures); err != nil {
		return err
	}
	errs := make([]error, len(departures))
	var g errgroup.Group
	for i, dep := range departures {
		g.Go(func() error {
			errs[i] = safely.Call(func() error { return n.leave(ctx, dep) }) // a hook that panics ends no gate
			if definite(errs[i]) {
				n.stop.end(errs[i])
			}
			return nil
		})
	}
	_ = g.Wait() // every error is in errs
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return n.vacated(ctx)
}

// released reports whether an earlier try of this run took the node out for a Service, and what it set still stands.
func (n *nodeRun) released(dep *departure) bool {
	c := n.held.Claim()
	if dep.entry || !c.Services[dep.key.String()].Released {
		return false
	}
	switch dep.removal {
	case guard.RemovalLabel:
		return n.labelled()
	case guard.RemovalHook:
		return c.Has(claim.HookSet(dep.hookName, dep.key.String()))
	}
	return true
}

// vacated says in the claim that every Service has let the node go and that the run is over.
func (n *nodeRun) vacated(ctx context.Context) error {
	now := n.Clock.Now().UTC().Truncate(time.Second)
	err := n.change(ctx, func(ctx context.Context) error {
		return n.held.Finish(ctx, func(c *claim.Claim) {
			c.Phase, c.Ended = claim.Proven, &now
			n.noteAll(c)
			// What is left has no endpoint on the node, and no pod that could wait for it.
			for name, s := range c.Services {
				s.Released = true
				c.Services[name] = s
			}
		})
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.finished = true
	n.mu.Unlock()
	return nil
}

// Reasons lists what stands against a plan, a line for each finding.
func (e *Refusal) Reasons() []string { return blocking(e.Plan) }

// Short is the first reason, for messages that have little room.
func (e *Refusal) Short() string {
	reasons := e.Reasons()
	if len(reasons) == 0 {
		return e.Error()
	}
	first, _, _ := strings.Cut(reasons[0], ";")
	return first
}
