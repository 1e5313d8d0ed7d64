package rolling

import (
	"context"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/rolling"
)

// placedMost is the most nodes for which it is looked at where their pods may run next: that takes a look at every pod for
// each of them.
const placedMost = 256

// Outlook is what a roll of some nodes would be as things are now: a plan for each node by itself, in the order of their
// turns.
type Outlook struct {
	Plans []guard.DrainPlan
	// Placed says that the order knows where the pods of each node may run next.
	Placed   bool
	snapshot *cluster.Snapshot
	opts     *Options
	hooks    cluster.Matcher
}

// Outlook judges nodes as they are now.
func (r *Roller) Outlook(ctx context.Context, opts *Options, nodes []string) (*Outlook, error) {
	if len(nodes) == 0 {
		return &Outlook{opts: opts, hooks: r.Hooks}, nil
	}
	load := r.Load
	if r.Places != nil && len(nodes) <= placedMost {
		load = r.Places
	}
	snapshot, err := load(ctx, nodes)
	if err != nil {
		return nil, err
	}
	return Judge(snapshot, r.Hooks, opts, nodes), nil
}

// Judge makes the outlook of nodes from what was read of a cluster.
func Judge(snapshot *cluster.Snapshot, hooks cluster.Matcher, opts *Options, nodes []string) *Outlook {
	o := &Outlook{snapshot: snapshot, opts: opts, hooks: hooks}
	places := snapshot.Placement()
	o.Placed = places != nil && len(nodes) <= placedMost
	for _, name := range nodes {
		req := opts.request(name)
		if o.Placed {
			req.Cluster = places
		}
		o.Plans = append(o.Plans, guard.Plan(snapshot.Index(hooks, []string{name}), req))
	}
	rolling.Order(o.Plans)
	return o
}

// Names are the nodes in the order of their turns.
func (o *Outlook) Names() []string {
	var out []string
	for i := range o.Plans {
		out = append(out, o.Plans[i].Nodes...)
	}
	return out
}

// Turns predicts which nodes are away together.
func (o *Outlook) Turns() [][]string {
	return rolling.Turns(o.Names(), o.opts.AtOnce, func(nodes []string) bool {
		plan := guard.Plan(o.snapshot.Index(o.hooks, nodes), o.opts.request(nodes...))
		return rolling.Against(&plan) == ""
	})
}

// refused are the plans that guard refuses.
func (o *Outlook) refused() []guard.DrainPlan {
	var out []guard.DrainPlan
	for i := range o.Plans {
		if o.Plans[i].Refused() {
			out = append(out, o.Plans[i])
		}
	}
	return out
}
