// Package metallb is the hooks metallb-l2 and metallb-bgp.
//
// MetalLB leaves out a node that carries the exclude label, and reports in status objects who announces a Service:
// ServiceL2Status and ServiceBGPStatus, and in frr-k8s mode FRRNodeState, which has what FRR really runs.
//
// A Service can be advertised by L2 and by BGP at once. Then one hook fronts it, metallb-bgp: its seats are those of both
// kinds, and its proof asks both kinds of status. Rules are those of MetalLB v0.15.3 and v0.16.2.
package metallb

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Names of the two hooks.
const (
	L2  = "metallb-l2"
	BGP = "metallb-bgp"
)

// Settle times. L2: gratuitous ARP goes out at once and the status follows the data plane, mostly; BGP: convergence of
// the peers. Through FRR, without a look at what FRR runs, its debounce of 3 s comes on top.
const (
	settle          = 2 * time.Second
	settleUnseenFRR = 5 * time.Second
)

const (
	group    = "metallb.io"
	frrGroup = "frrk8s.metallb.io"
	version  = "v1beta1"
)

// Resources whose status the hooks read.
var (
	L2Statuses  = schema.GroupVersionResource{Group: group, Version: version, Resource: "servicel2statuses"}
	BGPStatuses = schema.GroupVersionResource{Group: group, Version: version, Resource: "servicebgpstatuses"}
	NodeStates  = schema.GroupVersionResource{Group: frrGroup, Version: version, Resource: "frrnodestates"}
)

// Labels that a speaker puts on its status objects from the moment it creates them; their status is filled a moment later.
const (
	LabelNode             = "metallb.io/node"
	LabelServiceName      = "metallb.io/service-name"
	LabelServiceNamespace = "metallb.io/service-namespace"
)

// Hook is one of the two hooks of this package.
type Hook struct {
	name    string
	client  kubernetes.Interface
	dynamic dynamic.Interface
	memo    lbhooks.Memo[*world]
	steady  lbhooks.Memo[*installation]
	native  nativeMode
	half    halfTaken
}

var _ lbhooks.Hook = (*Hook)(nil)

// NewL2 returns the hook metallb-l2. Offline both clients are nil; without a kubernetes client the evidence says nothing
// about speakers.
func NewL2(client kubernetes.Interface, dyn dynamic.Interface) *Hook {
	return &Hook{name: L2, client: client, dynamic: dyn}
}

// NewBGP returns the hook metallb-bgp; see [NewL2] for the clients.
func NewBGP(client kubernetes.Interface, dyn dynamic.Interface) *Hook {
	return &Hook{name: BGP, client: client, dynamic: dyn}
}

// Describe names the hook and what it needs.
func (h *Hook) Describe() lbhooks.Description {
	d := lbhooks.Description{Name: h.name, Witness: "ServiceL2Status", Settle: settle}
	d.Needs = append(d.Needs,
		need("ipaddresspools", "IPAddressPool", "which pool an address comes from"),
		need("l2advertisements", "L2Advertisement", "which nodes may announce by L2"),
		need("servicel2statuses", "ServiceL2Status", "which node announces by L2"),
	)
	if h.name == BGP {
		d.Witness = "ServiceBGPStatus, FRRNodeState"
		d.Needs = append(d.Needs,
			need("bgpadvertisements", "BGPAdvertisement", "which nodes may announce by BGP"),
			need("servicebgpstatuses", "ServiceBGPStatus", "which nodes announce by BGP"),
			optional(lbhooks.Need{
				Group: group, Version: "v1beta2", Resource: "bgppeers", Kind: "BGPPeer", Namespaced: true,
				Why: "without it every node is taken to have a BGP session",
			}),
			optional(lbhooks.Need{
				Group: frrGroup, Version: version, Resource: "frrnodestates", Kind: "FRRNodeState",
				Verbs: []string{"get", "list"}, Why: "without it nothing shows what FRR runs: settle 5s instead of 2s",
			}),
		)
	}
	for _, labels := range speakerLabels {
		d.Needs = append(d.Needs, optional(lbhooks.Need{
			Version: "v1", Resource: "pods", Kind: "Pod", Namespaced: true, Labels: labels,
			Verbs: []string{"get", "list"}, Why: "without it every node is taken to run a speaker",
		}))
	}
	return d
}

func need(resource, kind, why string) lbhooks.Need {
	return lbhooks.Need{Group: group, Version: version, Resource: resource, Kind: kind, Namespaced: true, Verbs: []string{"list"}, Why: why}
}

func optional(n lbhooks.Need) lbhooks.Need {
	n.Optional = true
	if n.Verbs == nil {
		n.Verbs = []string{"list"}
	}
	return n
}

// Match tells whether MetalLB announces the Service in the way of this hook.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return lbhooks.Rotation{}, false
	}
	w := h.memo.Get(objects, func(o lbhooks.Objects) *world { return newWorld(o, h.steady.GetSteady(o, newInstallation)) })
	h.native.Store(w.speakers.native)
	m := w.match(svc)
	if m.reason == "" || m.hook() != h.name {
		return lbhooks.Rotation{}, false
	}
	return m.rotation(objects), true
}

// Withdraw does nothing: the exclude label, which the drain sets once, takes the node out of every Service.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the node is announced from again once the label is gone and an endpoint is there.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }
