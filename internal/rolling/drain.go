package rolling

import (
	"context"
	"errors"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/surge"
)

var getOptions = metav1.GetOptions{}

// runner is the Runner for this node: under the name in its mark, and stopped softly by soft.
func (n *node) runner(soft <-chan struct{}) *drain.Runner {
	r := *n.Runner
	r.RunID, r.Soft = n.mark.Run, soft
	return &r
}

// drain drains the node. A node that is drained already passes at once.
func (n *node) drain(ctx context.Context) error {
	opts := n.opts.Drain
	opts.Nodes = []string{n.name}
	opts.TakeOver = opts.TakeOver || n.deadClaim()
	var res *drain.Result
	r := n.runner(n.stop.done)
	if opts.Surge != surge.Off && r.Places != nil {
		r.Load = first(r.Places, r.Load)
	}
	err := n.during(ctx, func(ctx context.Context) error {
		res = r.Drain(ctx, opts)
		return nil
	})
	if err != nil {
		return err
	}
	n.drained = res
	for i := range res.Nodes {
		n.deleted = n.deleted || res.Nodes[i].Deleted
	}
	switch {
	case res.Outcome == drain.Done:
		return nil
	case res.Outcome == drain.Interrupted && !n.stop.interrupted():
		return errStopped
	case res.Outcome != drain.Refused:
		return &badEnd{res.Outcome, res.Err}
	}
	var refusal *drain.Refusal
	if errors.As(res.Err, &refusal) {
		return &notNow{Plan: refusal.Plan, Cause: res.Err}
	}
	return &notNow{Cause: res.Err}
}

// load builds a snapshot of the cluster.
type load func(ctx context.Context, nodes []string) (*cluster.Snapshot, error)

// first is a load that is one thing the first time and another one from then on: that by which a drain is planned reads
// where pods can be placed.
func first(once, then load) load {
	var again atomic.Bool
	return func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
		if again.Swap(true) {
			return then(ctx, nodes)
		}
		return once(ctx, nodes)
	}
}

// errStopped ends a node that was under way when another one failed.
var errStopped = errors.New("stopped, since the roll is over")

// deadClaim reports whether the claim on the node is that of an earlier run of this roll, which is known to be dead.
func (n *node) deadClaim() bool { return n.was != nil && n.claimed == n.was.Run }

// claimRun is the run whose claim stands on a node, "" when there is none.
func claimRun(node *corev1.Node) string {
	if c, err := claim.Of(node); err == nil && c != nil {
		return c.Run
	}
	return ""
}

// back puts the node into rotation again, if it is to return.
func (n *node) back(ctx context.Context) error {
	if !n.opts.Uncordon || n.deleted {
		return nil
	}
	r := n.runner(n.Soft)
	return n.timed(ctx, "return", func(ctx context.Context) error {
		return n.during(ctx, func(ctx context.Context) error { return n.uncordon(ctx, r) })
	})
}

func (n *node) uncordon(ctx context.Context, r *drain.Runner) error {
	all, res := r.Uncordon(ctx, drain.RestoreOptions{
		Nodes: []string{n.name}, WaitTimeout: n.opts.WaitTimeout, Rebalance: n.opts.Rebalance,
	})
	if len(all) == 1 {
		n.restored = &all[0]
	}
	switch {
	case res.Outcome == drain.Done:
		return nil
	case apierrors.IsNotFound(res.Err): // the command has deleted it
		n.deleted = true
		return nil
	}
	outcome := res.Outcome
	if outcome == drain.Failed {
		outcome = drain.Unfinished
	}
	return &badEnd{outcome, res.Err}
}

// rollback puts the node back whatever its drain has left, and takes the mark off it. A drain that rolled back has left
// nothing.
func (n *node) rollback(ctx context.Context) error {
	if err := n.uncordon(ctx, n.runner(nil)); err != nil {
		return err
	}
	return n.unmark(ctx)
}
