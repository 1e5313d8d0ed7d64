package azure

import (
	"context"
	"slices"
	"strings"

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
	client, err := h.api.ready()
	if err != nil {
		return err
	}
	for _, rule := range b.rules {
		state, err := health(ctx, client, rule)
		if err != nil {
			return err
		}
		if !state.upBut(own) {
			return lbhooks.NobodyElse("rule " + rule.id[strings.LastIndex(rule.id, "/")+1:] + " of load balancer " + rule.balancer)
		}
	}
	return nil
}

// upBut reports whether a backend is up that is none of these machines.
func (r *ruleHealth) upBut(own []machine) bool {
	for i := range r.LoadBalancerBackendAddresses {
		row := &r.LoadBalancerBackendAddresses[i]
		e := entry{strings.ToLower(row.NetworkInterfaceIPConfigurationID), row.IPAddress}
		mine := slices.ContainsFunc(own, func(m machine) bool { same, _ := e.is(m); return same })
		if !mine && row.State == up && !strings.Contains(row.Reason, allDown) {
			return true
		}
	}
	return false
}
