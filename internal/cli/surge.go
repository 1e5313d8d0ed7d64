package cli

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
)

// surged completes a plan by the replicas that a drain starts first, or says where one would help.
func (a *app) surged(ctx context.Context, w *world, f *SourceFlags, o *drain.Options, plan *guard.DrainPlan) (*guard.DrainPlan, error) {
	from := surge.Files(w.snap)
	if !f.offline() {
		c, err := a.kube.clients()
		if err != nil {
			return nil, err
		}
		if c.Dynamic == nil {
			return plan, nil
		}
		from = (&surge.Bringer{Client: c.Kubernetes, Dynamic: c.Dynamic, Clock: clock.RealClock{}}).Live()
	}
	q := surge.Question{Plan: plan, Index: w.snap.Index(w.hooks, o.Nodes), Places: w.snap.Placement(), Scope: o.Surge}
	plan, _, err := surge.Complete(ctx, from, q, func(first []guard.Surge) guard.DrainPlan {
		req := request(o, o.Nodes...)
		req.Cluster, req.Surges = w.snap.Placement(), first
		return guard.Plan(w.snap.Index(w.hooks, o.Nodes), req)
	})
	if err != nil && !f.offline() {
		return nil, &connectError{kube: a.kube, err: err}
	}
	return plan, err
}
