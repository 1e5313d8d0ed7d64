// Package gcp is the hook gcp: Google's passthrough Network Load Balancers, internal and external, as GKE and the cloud
// provider make them: backend services over zonal NEGs (GCE_VM_IP) or instance groups, and the older target pools.
//
// The controllers take a node out when it bears the exclude label; the hook only watches, and changes nothing at Google.
// Proof is that the node is no member any more, or that the load balancer's own health check fails it, while another
// member is healthy.
package gcp

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Name of the hook.
const Name = "gcp"

// Settle is the time after the proof: the connection draining that GKE's controllers configure (ingress-gce pkg/backends,
// 30 s). Google documents that a removed backend gets no new connections, and no number for how soon.
const Settle = 30 * time.Second

// poll is the pace of observation.
const poll = time.Second

// patience is how long a proof may take: a controller has to see the label and to call Google first.
const patience = 2 * time.Minute

// Names of the options.
const (
	optionProject = "project"
	optionRegion  = "region"
	optionSettle  = "settle"
)

// Options are the options that the hook knows.
func Options() []lbhooks.Option {
	return []lbhooks.Option{
		{Name: optionProject, Kind: lbhooks.OptionText, Usage: "the project of the load balancers (default: the node's, by its providerID)"},
		{Name: optionRegion, Kind: lbhooks.OptionText, Usage: "the region of the load balancers (default: the node's, by its providerID)"},
		{Name: optionSettle, Kind: lbhooks.OptionDuration, Usage: "time to wait after the proof (default 30s)"},
	}
}

// Hook is the hook gcp.
type Hook struct {
	kube    kubernetes.Interface
	options lbhooks.Options
	api     *api
	memo    lbhooks.Memo[*world]

	mu    sync.Mutex
	found map[string]*balancer // by namespace/name: what was looked up lately
}

var (
	_ lbhooks.Hook       = (*Hook)(nil)
	_ lbhooks.Assertable = (*Hook)(nil)
	_ lbhooks.Paced      = (*Hook)(nil)
	_ lbhooks.Checker    = (*Hook)(nil)
)

// New returns the hook; offline the client is nil. Credentials are looked up at the first call.
func New(kube kubernetes.Interface, options lbhooks.Options, sdk SDK) *Hook {
	return &Hook{kube: kube, options: options, api: &api{sdk: sdk}, found: map[string]*balancer{}}
}

// Describe names the hook. It needs nothing of the cluster.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: Name, Witness: "membership and health at the load balancer", Settle: h.settle()}
}

func (h *Hook) settle() time.Duration { return h.options.Duration(optionSettle, Settle) }

// Pace is one observation a second.
func (h *Hook) Pace(lbhooks.Target) (time.Duration, int) { return poll, 1 }

// Withdraw does nothing: the exclude label, which the drain sets once, makes the controller drop the node.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the controller takes the node back once the label is gone.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Match takes a Service that GKE's controllers or the cloud provider have tied to a load balancer of Google.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	w := h.memo.Get(objects, newWorld)
	reason := w.reason(svc)
	if reason == "" {
		return lbhooks.Rotation{}, false
	}
	return w.rotation(svc, objects, reason), true
}

// Assert returns the rotation of a Service that a user says is behind Google's load balancer.
func (h *Hook) Assert(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	return h.memo.Get(objects, newWorld).rotation(svc, objects, "")
}

// instance is a virtual machine, as a node's providerID "gce://PROJECT/ZONE/NAME" names it.
type instance struct{ project, zone, name string }

func instanceOf(n *corev1.Node) (instance, bool) {
	rest, ok := strings.CutPrefix(n.Spec.ProviderID, "gce://")
	if !ok {
		return instance{}, false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return instance{}, false
	}
	return instance{parts[0], parts[1], parts[2]}, true
}

// region is the zone's: "europe-west1-b" is in "europe-west1".
func (i instance) region() string {
	if at := strings.LastIndex(i.zone, "-"); at > 0 {
		return i.zone[:at]
	}
	return i.zone
}

// is reports whether a reference, a URL or a name, is this instance; in tells the zone where the reference does not.
func (i instance) is(reference, in string) bool {
	zone, name := in, reference
	if at := strings.Index(reference, "zones/"); at >= 0 {
		parts := strings.Split(reference[at:], "/")
		if len(parts) != 4 || parts[2] != "instances" {
			return false
		}
		zone, name = parts[1], parts[3]
	}
	return name == i.name && (zone == i.zone || zone == "")
}
