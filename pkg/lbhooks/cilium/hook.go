// Package cilium is the hooks cilium-bgp and cilium-l2.
//
// By BGP a node advertises a Service of policy Local only while it has an active backend, and one that terminates is not
// active: so the route goes when the eviction begins, while the pod still serves. Pods that serve for as long as the
// peers need are enough. No label takes a node out, unless the CiliumBGPClusterConfig itself keeps off nodes that bear
// the exclude label: then the node leaves with all its sessions, whatever its Services.
//
// L2 announcements do not support policy Local: a node without a pod may announce the address. Of policy Cluster the
// holder of a Lease announces. Rules are those of Cilium 1.18 to 1.20.
package cilium

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/lease"
)

// Names of the two hooks.
const (
	BGP = "cilium-bgp"
	L2  = "cilium-l2"
)

// Times. Converge bounds what peers need to forget a route, and the agent to see that a backend is no longer active.
const (
	converge = 5 * time.Second
	settle   = 5 * time.Second
	// restart is how long a peer with graceful restart keeps the routes of a session that ended, where nothing else is said.
	restart = 120 * time.Second
)

// Load balancer classes of Cilium: a Service of another class is neither advertised nor announced.
const (
	classBGP = "io.cilium/bgp-control-plane"
	classL2  = "io.cilium/l2-announcer"
)

const group = "cilium.io"

// versions of Cilium's kinds, newest first.
var versions = []string{"v2", "v2alpha1"}

// Hook is one of the two hooks of this package.
type Hook struct {
	name    string
	dynamic dynamic.Interface
	leases  *lease.Reader
	memo    lbhooks.Memo[*world]
	lease   atomic.Pointer[string] // the namespace of Cilium's Leases, as the last match saw it
}

var (
	_ lbhooks.Hook      = (*Hook)(nil)
	_ lbhooks.Preflight = (*Hook)(nil)
)

// NewBGP returns the hook cilium-bgp; offline the client is nil.
func NewBGP(dyn dynamic.Interface) *Hook { return &Hook{name: BGP, dynamic: dyn} }

// NewL2 returns the hook cilium-l2; offline the client is nil. The clock tells whether a Lease is fresh.
func NewL2(client kubernetes.Interface, clk clock.PassiveClock) *Hook {
	h := &Hook{name: L2}
	if client != nil {
		h.leases = lease.NewReader(L2, client, clk)
	}
	return h
}

// Describe names the hook and what it needs.
func (h *Hook) Describe() lbhooks.Description {
	policies := need("ciliuml2announcementpolicies", "CiliumL2AnnouncementPolicy", "v2alpha1", "which Services are announced by L2, and from which nodes")
	if h.name == L2 {
		return lbhooks.Description{
			Name: L2, Generic: true, Witness: "Lease", Settle: settle,
			Needs: []lbhooks.Need{policies, lease.Need("its holder is the node that announces")},
		}
	}
	policies.Optional = true
	peers := need("ciliumbgppeerconfigs", "CiliumBGPPeerConfig", "v2", "without it graceful restart is not seen: settle 5s")
	peers.Optional = true
	return lbhooks.Description{
		Name: BGP, Witness: "CiliumBGPNodeConfig", Settle: settle,
		Needs: []lbhooks.Need{
			need("ciliumbgpadvertisements", "CiliumBGPAdvertisement", "v2", "which Services are advertised"),
			need("ciliumbgpclusterconfigs", "CiliumBGPClusterConfig", "v2", "which nodes have sessions, and whether the label ends them"),
			need("ciliumbgpnodeconfigs", "CiliumBGPNodeConfig", "v2", "the sessions of a node"),
			peers, policies,
		},
	}
}

func need(resource, kind, version, why string) lbhooks.Need {
	return lbhooks.Need{Group: group, Version: version, Resource: resource, Kind: kind, Verbs: []string{"list"}, Why: why}
}

// Match tells whether Cilium announces the Service in the way of this hook. Of both ways it is cilium-bgp's.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	w := h.memo.Get(objects, newWorld)
	m := match{world: w, svc: svc, objects: objects}
	if h.name == L2 {
		h.lease.Store(&w.leaseNamespace)
		return m.l2()
	}
	return m.bgp()
}

// Withdraw does nothing: the exclude label, where Cilium's own configuration obeys it, or the end of the backends.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the node is back once the label is gone and a backend is active.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }
