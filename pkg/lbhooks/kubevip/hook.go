// Package kubevip is the hook kube-vip.
//
// kube-vip has no notion of a drain: it reads no label, taint or cordon of a node. What makes it let go of an address is
// the end of its pod on the node, or of the endpoints there. So the exclude label is a lever where the DaemonSet of
// kube-vip keeps off nodes that bear it; anywhere else nothing can take a node out, and a removal is unproven.
//
// Who announces is told by Leases, one a Service or one for all; by BGP without an election every node announces that has
// an endpoint, and the proof is that no kube-vip runs on the node any more. Rules are those of kube-vip v1.2.3.
package kubevip

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/lease"
)

// Name of the hook.
const Name = "kube-vip"

// settle covers what comes after the Lease changed hands: the old holder releases it a moment before it takes its address
// down, and neighbours have to hear of the new one.
const settle = 5 * time.Second

// LabelSelector selects the pods of kube-vip's own manifest and of its chart.
const LabelSelector = "app.kubernetes.io/name in (kube-vip, kube-vip-ds)"

// Annotations and labels of kube-vip, pkg/kubevip/annotations.go, labels.go and constants.go.
const (
	annotationPrefix = "kube-vip.io/"
	annotationHost   = "kube-vip.io/vipHost"
	annotationLease  = "kube-vip.io/leaseName"
	annotationIgnore = "kube-vip.io/ignore"
	annotationForce  = "kube-vip.io/forcePerServiceElection"
	defaultClass     = "kube-vip.io/kube-vip-class"
	// labelProvided and ".../<service>.<namespace>" is the label of the node that has the address, where labels are on.
	labelProvided = "service-provided.kube-vip.io/"
)

// Hook is the hook kube-vip.
type Hook struct {
	client  kubernetes.Interface
	leases  *lease.Reader
	memo    lbhooks.Memo[*world]
	configs sync.Map // *config by Service, as the last match found it, for the proof
}

var _ lbhooks.Hook = (*Hook)(nil)

// New returns the hook; offline the client is nil. The clock tells whether a Lease is fresh.
func New(client kubernetes.Interface, clk clock.PassiveClock) *Hook {
	return &Hook{client: client, leases: lease.NewReader(Name, client, clk)}
}

// Describe names the hook and what it needs.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{
		Name: Name, Witness: "Lease", Settle: settle,
		Needs: []lbhooks.Need{
			lease.Need("its holder is the node that announces"),
			{
				Version: "v1", Resource: "pods", Kind: "Pod", Namespaced: true, Labels: LabelSelector, Verbs: []string{"list"},
				Why: "on which nodes kube-vip runs, and how it is set up",
			},
			{
				Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices", Kind: "EndpointSlice", Namespaced: true,
				Verbs: []string{"list"}, Why: "whether the node that took over has an endpoint",
			},
			{
				Group: "apps", Version: "v1", Resource: "daemonsets", Kind: "DaemonSet", Namespaced: true, Verbs: []string{"list"},
				Optional: true, Why: "without it nothing shows that the label takes kube-vip off a node: no removal is proven",
			},
			{
				Version: "v1", Resource: "nodes", Kind: "Node", Verbs: []string{"list"},
				Why: "whether kube-vip labelled a second node as the holder of the address",
			},
		},
	}
}

// Match takes a Service that kube-vip announces, by its settings or by what it wrote.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Annotations[annotationIgnore] == "true" {
		return lbhooks.Rotation{}, false
	}
	w := h.memo.Get(objects, newWorld)
	in, reason, differ := w.of(svc)
	if in == nil {
		return lbhooks.Rotation{}, false
	}
	h.configs.Store(types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, &in.config)
	m := match{world: w, install: in, svc: svc, objects: objects, differ: differ}
	r := m.rotation()
	r.Reason = reason
	return r, true
}

// Withdraw does nothing: where a node can leave at all it does so by the exclude label, which the drain sets once.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: kube-vip comes back to the node once the label is gone, and stands for election again.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }
