package drain

import (
	"context"
	"slices"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

// free lists the Services that are reached from outside with policy Local, have endpoints on the node, and need not let it
// go: their pods are evicted at once. The claim names them, for a gate that knows less of their balancer than this run does
// would hold its evictions for ever.
func (n *nodeRun) free(departures []*departure) []string {
	plan, _ := n.current()
	var free []string
	for i := range plan.Services {
		s := &plan.Services[i]
		there := slices.ContainsFunc(s.Nodes, func(r guard.NodeRow) bool { return r.Name == n.name && r.Before != guard.StateEmpty })
		leaves := slices.ContainsFunc(departures, func(d *departure) bool { return d.key == s.Key() })
		if there && !leaves && s.Policy != guard.PolicyInternal && !n.affected(s) {
			free = append(free, s.Key().String())
		}
	}
	return free
}

// noteFree names them in the claim where nothing else is to be written.
func (n *nodeRun) noteFree(ctx context.Context, free []string) error {
	known := n.held.Claim().Free
	if !slices.ContainsFunc(free, func(name string) bool { return !slices.Contains(known, name) }) {
		return nil
	}
	return n.change(ctx, func(ctx context.Context) error {
		return n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { addFree(c, free) })
	})
}

func addFree(c *claim.Claim, free []string) {
	c.Free = append(c.Free, free...)
	slices.Sort(c.Free)
	c.Free = slices.Compact(c.Free)
}
