package aws

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Prove makes one observation: in every target group of the Service that has nodes for targets, this node is absent,
// unused, or draining with a settle time to follow, and another target is healthy. A Classic Load Balancer does not have
// the instance, or says that it is out of service.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.kube == nil {
		return lbhooks.Proof{}, offline()
	}
	if len(targetIDs(t.Node)) == 0 {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, fmt.Sprintf("node %q has neither an EC2 instance in its providerID (%q) nor an address", t.Node.Name, t.Node.Spec.ProviderID), nil)
	}
	f, err := h.fleet(ctx, t)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	if f.classic != "" {
		return h.proveClassic(ctx, f, t)
	}
	proof, err := h.proveGroups(ctx, f.groups, t.Node)
	if isGone(err) {
		h.forget(t)
	}
	return proof, err
}

// proveGroups looks at every group that has nodes for targets, until one has not let go of the node.
func (h *Hook) proveGroups(ctx context.Context, groups []group, node *corev1.Node) (lbhooks.Proof, error) {
	var seen []string
	var settle time.Duration
	for _, g := range groups {
		if g.pods {
			continue
		}
		s, err := h.look(ctx, g, node)
		if err != nil {
			return lbhooks.Proof{}, err
		}
		wait := h.settleFor(g.network)
		out, evidence := s.out(wait > 0 && h.options.Text(optionProof) != proofAbsent)
		if !out {
			return lbhooks.Proof{Evidence: evidence}, nil
		}
		seen, settle = append(seen, evidence), max(settle, wait)
	}
	if len(seen) == 0 {
		return lbhooks.Proof{Evidence: "ip targets only: the balancer sends to pods, and each leaves by itself"}, nil
	}
	return lbhooks.Proof{Out: true, Evidence: strings.Join(seen, "; "), Settle: &settle}, nil
}

var _ lbhooks.Preflight = (*Hook)(nil)

// Before takes a baseline where a health check alone removes the node: the node is healthy at every group now, so that a
// change will mean something, and so is another target, so that the balancer has somewhere to go.
func (h *Hook) Before(ctx context.Context, t lbhooks.Target, _ []*corev1.Node) (string, error) {
	if h.kube == nil {
		return "", offline()
	}
	f, err := h.fleet(ctx, t)
	if err != nil {
		return "", err
	}
	var seen []string
	for _, g := range f.groups {
		if g.pods {
			continue
		}
		s, err := h.look(ctx, g, t.Node)
		if err != nil {
			return "", err
		}
		state, reason := s.worst()
		if state != healthy || s.healthy == 0 {
			return "", fmt.Errorf("%s: %w: in %s the node is %s%s and %d others are healthy; both have to be before the check is relied on",
				Name, lbhooks.ErrNotProven, g.name, state, reason, s.healthy)
		}
		seen = append(seen, fmt.Sprintf("%s: healthy, and %d others", g.name, s.healthy))
	}
	if len(seen) == 0 {
		return "", fmt.Errorf("%s: %w: %s has no target group with nodes in it", Name, lbhooks.ErrNotProven, keyOf(t.Service))
	}
	return strings.Join(seen, "; "), nil
}

const healthy = "healthy"
