package calico

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Prove makes one observation: the CalicoNodeStatus of the node was updated since the first look at it, and shows no
// route of the node's own to an address of the Service.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.dynamic == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, "there is no API server to ask", nil)
	}
	s, err := h.status(ctx, t.Node.Name)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	if s == nil {
		return lbhooks.Proof{Evidence: "no CalicoNodeStatus of class Routes tells the routes of " + t.Node.Name}, nil
	}
	updated := h.updated(s)
	addresses := lbhooks.Addresses(t.Service)
	for _, text := range t.Service.Spec.ExternalIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, addr.Unmap())
		}
	}
	if route, in := s.originates(addresses); in {
		return lbhooks.Proof{Evidence: fmt.Sprintf("CalicoNodeStatus %s, updated %s: %s still originates %s", s.name, s.at, t.Node.Name, route)}, nil
	}
	if !updated {
		return lbhooks.Proof{Evidence: fmt.Sprintf("CalicoNodeStatus %s shows no route, but was not updated since: last %s, every %ds", s.name, s.at, s.period)}, nil
	}
	return lbhooks.Proof{Out: true, Evidence: fmt.Sprintf("CalicoNodeStatus %s, updated %s: %s originates no route to it", s.name, s.at, t.Node.Name)}, nil
}

// updated reports whether the status was seen to be updated lately.
func (h *Hook) updated(s *status) bool {
	at, err := time.Parse(time.RFC3339, s.at)
	if err != nil || s.period <= 0 {
		return false
	}
	return h.renewals.Seen(s.name, at, 2*time.Duration(s.period)*time.Second+settle)
}

// status returns the status of a node that tells its routes; nil when nobody made one. The kinds of either group will do.
func (h *Hook) status(ctx context.Context, node string) (*status, error) {
	served := false
	var last error
	for _, g := range groups {
		gvr := schema.GroupVersionResource{Group: g.name, Version: g.version, Resource: "caliconodestatuses"}
		list, err := h.dynamic.Resource(gvr).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			last = err
			continue
		}
		if err != nil {
			return nil, lbhooks.ReadFailed(Name, "list", "caliconodestatuses."+g.name, err)
		}
		served = true
		for i := range list.Items {
			if s, ok := statusOf(&list.Items[i]); ok && s.node == node {
				return &s, nil
			}
		}
	}
	if !served {
		return nil, lbhooks.ReadFailed(Name, "list", "caliconodestatuses."+groups[0].name, last)
	}
	return nil, nil
}
