package cluster

import (
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Clients is how a live cluster is read. What the cluster serves is asked for once in the life of a Clients, so that
// loading again costs no more than the LISTs.
type Clients struct {
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface            // nil: objects of hooks are not read
	Discovery  discovery.DiscoveryInterface // nil: Kubernetes.Discovery()
	Metadata   metadata.Interface           // nil: what only the metadata of objects tells is not read

	mu     sync.Mutex
	served servedKinds
	// What an earlier load saw, so that the next one need not ask: see remembered.go.
	daemonSets map[guard.Key]*appsv1.DaemonSet
	noAgents   map[string]bool
	allowed    map[string]bool // "namespace: permission"
}

// servedKinds maps the kinds that a cluster serves to the resource to list.
type servedKinds map[schema.GroupKind][]schema.GroupVersionResource

// ConfigFor returns a copy of cfg for typed clients: protobuf where the server has it, and no throttle on the client's
// side, since priority and fairness on the server's side knows better.
func ConfigFor(cfg *rest.Config) *rest.Config {
	out := unthrottled(cfg)
	out.ContentType = runtime.ContentTypeProtobuf
	out.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return out
}

func unthrottled(cfg *rest.Config) *rest.Config {
	out := rest.CopyConfig(cfg)
	out.QPS = -1
	out.Burst = 0
	out.RateLimiter = nil
	return out
}

// NewClients builds the clients for a cluster.
func NewClients(cfg *rest.Config) (*Clients, error) {
	k, err := kubernetes.NewForConfig(ConfigFor(cfg))
	if err != nil {
		return nil, fmt.Errorf("build a client for %s: %w", cfg.Host, err)
	}
	d, err := dynamic.NewForConfig(unthrottled(cfg))
	if err != nil {
		return nil, fmt.Errorf("build a dynamic client for %s: %w", cfg.Host, err)
	}
	m, err := metadata.NewForConfig(ConfigFor(cfg))
	if err != nil {
		return nil, fmt.Errorf("build a client of metadata for %s: %w", cfg.Host, err)
	}
	return &Clients{Kubernetes: k, Dynamic: d, Discovery: k.Discovery(), Metadata: m}, nil
}
