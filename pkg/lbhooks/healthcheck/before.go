package healthcheck

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var _ lbhooks.Preflight = (*Hook)(nil)

// Before takes the baseline: the node's port passes now, so that its failure will mean something, and at least one of the
// others passes too, so that the balancer has somewhere to go. A port that cannot be reached from here proves nothing.
func (h *Hook) Before(ctx context.Context, t lbhooks.Target, others []*corev1.Node) (string, error) {
	o, err := h.Baseline(ctx, t)
	if err != nil {
		return "", err
	}
	service := t.Service.Namespace + "/" + t.Service.Name
	if o.Answer != Passing {
		return "", fmt.Errorf("%s: %w: %s of node %q has to pass before its failure means anything, but %s; "+
			"run where the node's ports can be reached, or --accept-unproven=%s", Name, lbhooks.ErrNotProven, service, t.Node.Name, o.Detail, service)
	}
	healthy, err := h.Healthy(ctx, t.Service, others)
	if err != nil {
		return "", err
	}
	if len(healthy) == 0 {
		return "", fmt.Errorf("%s: %w: no other node passes the check of %s, so the balancer would have nowhere to go; "+
			"look at kube-proxy on the nodes with its endpoints", Name, lbhooks.ErrNotProven, service)
	}
	return fmt.Sprintf("%s; %s pass too", o.Detail, strings.Join(healthy, ", ")), nil
}
