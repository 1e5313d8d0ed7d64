// Package calico is the hook calico: Calico's own advertisement of Service addresses by BGP.
//
// A node advertises a Service of policy Local while it has a ready endpoint: so the route goes when the eviction begins,
// while the pod still serves. The exclude label withdraws all Services of the node, but only with the value "true", which
// is the one that safedrain writes. What a node's BIRD knows is told by a CalicoNodeStatus, where somebody made one for
// the node: then a removal is proven. Rules are those of Calico v3.32.
package calico

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/lease"
)

// Name of the hook.
const Name = "calico"

// Times: until peers have forgotten a route that the status no longer shows; and from a change of the endpoints on.
const (
	settle   = 5 * time.Second
	converge = 10 * time.Second
)

// groups serve Calico's kinds: as custom resources, and through its own API server or, newer, as custom resources too.
var groups = []struct{ name, version string }{{"crd.projectcalico.org", "v1"}, {"projectcalico.org", "v3"}}

// Hook is the hook calico.
type Hook struct {
	dynamic  dynamic.Interface
	renewals *lease.Renewals
	memo     lbhooks.Memo[*world]
	steady   lbhooks.Memo[*installation]
}

var _ lbhooks.Hook = (*Hook)(nil)

// New returns the hook; offline the client is nil. The clock tells whether a status is fresh.
func New(dyn dynamic.Interface, clk clock.PassiveClock) *Hook {
	return &Hook{dynamic: dyn, renewals: lease.NewRenewals(clk)}
}

// Describe names the hook and what it needs, of either group.
func (h *Hook) Describe() lbhooks.Description {
	d := lbhooks.Description{Name: Name, Witness: "CalicoNodeStatus", Settle: settle}
	for _, g := range groups {
		d.Needs = append(d.Needs,
			lbhooks.Need{
				Group: g.name, Version: g.version, Resource: "bgpconfigurations", Kind: "BGPConfiguration", Verbs: []string{"list"},
				Optional: true, Why: "which addresses are advertised",
			},
			lbhooks.Need{
				Group: g.name, Version: g.version, Resource: "caliconodestatuses", Kind: "CalicoNodeStatus", Verbs: []string{"list"},
				Optional: true, Why: "without it nothing shows that a node's routes are withdrawn",
			})
	}
	return d
}

// Match takes a Service with an address that Calico is set up to advertise.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	w := h.memo.Get(objects, func(o lbhooks.Objects) *world { return newWorld(o, h.steady.GetSteady(o, newInstallation)) })
	m := match{world: w, svc: svc, objects: objects}
	m.addresses, m.reason = w.advertised(svc)
	if len(m.addresses) == 0 {
		return lbhooks.Rotation{}, false
	}
	return m.rotation(), true
}

// Withdraw does nothing: the exclude label, which the drain sets once, withdraws every Service of the node.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the node advertises again once the label is gone and an endpoint is ready.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }
