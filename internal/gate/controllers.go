package gate

import (
	"context"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/gate/admission"
	"github.com/safedrain/safedrain/internal/gate/keeper"
	"github.com/safedrain/safedrain/internal/gate/manners"
	"github.com/safedrain/safedrain/internal/gate/withdraw"
	"github.com/safedrain/safedrain/pkg/guard"
)

// controllers are what the elected replica runs, by name. A gate that judges nothing anywhere still runs them: a namespace or
// a Service may say otherwise, and what is withdrawn has to come back.
func (g *Gate) controllers(recorder events.EventRecorder) map[string]Controller {
	d := &g.deps
	wall := clock.RealClock{}
	machines := &manners.Machines{
		Client: d.Clients.Kubernetes, Dynamic: d.Clients.Dynamic, Store: g.store, Log: d.Log, Clock: wall, Options: manners.Defaults(),
		Wanted: g.enforces,
	}
	withdrawals := &withdraw.Controller{
		Client: d.Clients.Kubernetes, Store: g.store, Runner: g.runner, Machines: machines, Events: recorder, Log: d.Log, Clock: wall,
		Options: withdraw.Defaults(), Outcome: g.metrics.Withdrawal, Wanted: g.enforces,
	}
	machines.Changed = withdrawals.Node
	return map[string]Controller{
		"keepers": &keeper.Controller{
			Client: d.Clients.Kubernetes, Metadata: d.Clients.Metadata, Store: g.store, Wanted: g.wantsKeepers, Events: recorder, Log: d.Log, Clock: wall,
			Options: keeper.Defaults(), Count: g.metrics.Keepers,
		},
		"withdrawals": withdrawals,
		"machines":    machines,
		"autoscaler": &manners.Autoscaler{
			Client: d.Clients.Kubernetes, Store: g.store, Log: d.Log, Clock: wall, Options: manners.Defaults(), Wanted: g.enforces,
		},
	}
}

// wantsKeepers reports whether a Service is judged at all.
func (g *Gate) wantsKeepers(v *cluster.StoreView, svc *guard.ServiceFacts) bool {
	return admission.ModeOf(g.options.Mode, v.Gate(svc.Key.Namespace), svc.Gate) != admission.Off
}

// enforces reports whether evictions of a Service's pods are refused.
func (g *Gate) enforces(v *cluster.StoreView, svc *guard.ServiceFacts) bool {
	return admission.ModeOf(g.options.Mode, v.Gate(svc.Key.Namespace), svc.Gate) == admission.Enforce
}

// runner carries out one withdrawal or return, as the command line does. It reads the cluster with a memory of its own: what
// the cluster serves may be another by the next time.
func (g *Gate) runner() *drain.Runner {
	clients := &cluster.Clients{
		Kubernetes: g.deps.Clients.Kubernetes, Dynamic: g.deps.Clients.Dynamic, Discovery: g.deps.Clients.Discovery,
	}
	return &drain.Runner{
		Client: clients.Kubernetes, Hooks: g.deps.Hooks, Clock: clock.RealClock{},
		Load: func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
			snap, err := cluster.Load(ctx, clients, g.deps.Hooks.Descriptions(), cluster.Scope{Nodes: nodes})
			if err == nil && g.deps.Check != nil {
				g.deps.Check(ctx, snap, nodes)
			}
			return snap, err
		},
	}
}
