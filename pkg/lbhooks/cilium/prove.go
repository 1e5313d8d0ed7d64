package cilium

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Prove makes one observation. BGP: the node has no CiliumBGPNodeConfig any more, so its agent has closed every session.
// L2: another node holds the Lease and renewed it lately.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.name == L2 {
		return h.proveL2(ctx, t)
	}
	if h.dynamic == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(BGP, "there is no API server to ask", nil)
	}
	config, err := h.nodeConfig(ctx, t.Node.Name)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	if config != nil {
		return lbhooks.Proof{Evidence: fmt.Sprintf("CiliumBGPNodeConfig %s is still there: %s", t.Node.Name, sessionsOf(config))}, nil
	}
	p := lbhooks.Proof{Out: true, Evidence: "there is no CiliumBGPNodeConfig " + t.Node.Name + ": its sessions are closed"}
	if kept := h.keptFor(ctx); kept > settle {
		p.Settle = &kept
		p.Evidence += fmt.Sprintf("; a peer with graceful restart may keep its routes for %s", kept)
	}
	return p, ctx.Err()
}

func (h *Hook) proveL2(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.leases == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(L2, "there is no API server to ask", nil)
	}
	if t.Service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		return lbhooks.Proof{Evidence: l2Local}, nil
	}
	namespace := metav1.NamespaceSystem
	if seen := h.lease.Load(); seen != nil {
		namespace = *seen
	}
	held, err := h.leases.Get(ctx, types.NamespacedName{Namespace: namespace, Name: leaseName(t.Service)})
	switch {
	case err != nil:
		return lbhooks.Proof{}, err
	case !held.Found, held.Holder == "":
		return lbhooks.Proof{Evidence: held.Evidence + ": no other node has taken over yet"}, nil
	case held.Holder == t.Node.Name:
		return lbhooks.Proof{Evidence: held.Evidence}, nil
	case !held.Fresh:
		return lbhooks.Proof{Evidence: held.Evidence + ": its holder may be dead"}, nil
	}
	return lbhooks.Proof{Out: true, By: held.Holder, Evidence: held.Evidence + lbhooks.NeighboursUnseen}, nil
}

// nodeConfig returns the CiliumBGPNodeConfig of a node; nil when there is none. It is looked for by a LIST, since a GET
// answers alike for an object and for a kind that is not there.
func (h *Hook) nodeConfig(ctx context.Context, node string) (*unstructured.Unstructured, error) {
	list, err := h.list(ctx, "ciliumbgpnodeconfigs", metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, node).String(),
	})
	if err != nil {
		return nil, lbhooks.ReadFailed(BGP, "list", "ciliumbgpnodeconfigs."+group, err)
	}
	for i := range list.Items {
		if list.Items[i].GetName() == node {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// list lists a kind in the newest version that is served.
func (h *Hook) list(ctx context.Context, resource string, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	var list *unstructured.UnstructuredList
	var err error
	for _, version := range versions {
		gvr := schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
		if list, err = h.dynamic.Resource(gvr).List(ctx, opts); !apierrors.IsNotFound(err) {
			return list, err
		}
	}
	return nil, err
}

// sessionsOf says what the status of a node's configuration tells: sessions, and how many routes are advertised.
func sessionsOf(config *unstructured.Unstructured) string {
	peers := peersOf(config)
	if len(peers) == 0 {
		return "no status of its sessions"
	}
	established, routes := 0, int64(0)
	for _, p := range peers {
		if state, _, _ := unstructured.NestedString(p, "peeringState"); strings.EqualFold(state, "established") {
			established++
		}
		counts, _, _ := unstructured.NestedSlice(p, "routeCount")
		for _, c := range counts {
			if count, ok := c.(map[string]any); ok {
				n, _, _ := unstructured.NestedInt64(count, "advertised")
				routes += n
			}
		}
	}
	return fmt.Sprintf("%d of %d sessions established, %d routes advertised", established, len(peers), routes)
}

func peersOf(config *unstructured.Unstructured) []map[string]any {
	var out []map[string]any
	instances, _, _ := unstructured.NestedSlice(config.Object, "status", "bgpInstances")
	for _, i := range instances {
		instance, ok := i.(map[string]any)
		if !ok {
			continue
		}
		peers, _, _ := unstructured.NestedSlice(instance, "peers")
		for _, p := range peers {
			if peer, ok := p.(map[string]any); ok {
				out = append(out, peer)
			}
		}
	}
	return out
}

// keptFor is how long a peer may keep the routes of a session that ended, because graceful restart was agreed; 0 where
// none is configured, or nobody can tell.
func (h *Hook) keptFor(ctx context.Context) time.Duration {
	list, err := h.list(ctx, "ciliumbgppeerconfigs", metav1.ListOptions{})
	if err != nil {
		return 0
	}
	var kept time.Duration
	for i := range list.Items {
		if on, _, _ := unstructured.NestedBool(list.Items[i].Object, "spec", "gracefulRestart", "enabled"); !on {
			continue
		}
		seconds, found, _ := unstructured.NestedInt64(list.Items[i].Object, "spec", "gracefulRestart", "restartTimeSeconds")
		if found {
			kept = max(kept, time.Duration(seconds)*time.Second)
		} else {
			kept = max(kept, restart)
		}
	}
	return kept
}

// Before looks at the sessions of the other nodes before the backends of this one go: where the agents report, one of
// them has to have a session, else the route would go and none be left.
func (h *Hook) Before(ctx context.Context, t lbhooks.Target, others []*corev1.Node) (string, error) {
	if h.name == L2 || h.dynamic == nil {
		return "", lbhooks.Unavailable(h.name, "there is nothing to rely on", nil)
	}
	silent := 0
	for _, n := range others {
		config, err := h.nodeConfig(ctx, n.Name)
		switch {
		case err != nil:
			return "", err
		case config == nil:
			continue
		case len(peersOf(config)) == 0:
			silent++
			continue
		}
		for _, p := range peersOf(config) {
			if state, _, _ := unstructured.NestedString(p, "peeringState"); strings.EqualFold(state, "established") {
				return fmt.Sprintf("%s has an established session and an active backend", n.Name), nil
			}
		}
	}
	if silent > 0 {
		return fmt.Sprintf("%d other nodes with a backend have sessions; their state is not reported", silent), nil
	}
	return "", fmt.Errorf("%s: %w: no other node with a backend of %s/%s has an established session",
		BGP, lbhooks.ErrNotProven, t.Service.Namespace, t.Service.Name)
}
