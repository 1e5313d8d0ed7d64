package azure

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var _ lbhooks.Standby = (*Hook)(nil)

// Others looks at every rule of the Service for a backend that is up besides the nodes that are to leave.
func (h *Hook) Others(ctx context.Context, svc *corev1.Service, leaving []*corev1.Node) error {
	var own []machine
	for _, n := range leaving {
		if m, ok := machineOf(n); ok {
			own = append(own, m)
		}
	}
	if h.kube == nil || len(own) == 0 {
		return nil
	}
	b, err := h.balancer(ctx, lbhooks.Target{Service: svc, Node: leaving[0]}, own[0])
	if err != nil {
		return err
	}
	rules, err := h.health(ctx, b)
	if err != nil {
		return err
	}
	for i, rows := range rules {
		if !upBut(rows, own) {
			return lbhooks.NobodyElse("rule " + b.rules[i].name + " of load balancer " + b.rules[i].balancer)
		}
	}
	return nil
}

// upBut reports whether a backend is up that is none of these machines.
func upBut(rows []row, own []machine) bool {
	return slices.ContainsFunc(rows, func(r row) bool {
		return r.up && !slices.ContainsFunc(own, func(m machine) bool { same, _ := r.is(m); return same })
	})
}
