package gcp

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var _ lbhooks.Standby = (*Hook)(nil)

// Others looks for a healthy member of the Service's balancer besides the nodes that are to leave: without one Google's
// default is to send to all.
func (h *Hook) Others(ctx context.Context, svc *corev1.Service, leaving []*corev1.Node) error {
	var own []instance
	for _, n := range leaving {
		if at, ok := instanceOf(n); ok {
			own = append(own, at)
		}
	}
	if h.kube == nil || len(own) == 0 {
		return nil
	}
	b, err := h.balancer(ctx, lbhooks.Target{Service: svc, Node: leaving[0]}, own[0])
	if err != nil {
		return err
	}
	if b.pool {
		return h.othersInPool(ctx, b, own)
	}
	for _, url := range b.groups {
		g, ok := readGroup(url)
		if !ok {
			return nil // the proof says that this backend cannot be read
		}
		ask := call{path: b.resource("backendServices", b.name) + "/getHealth", permission: permissionBackends, body: map[string]string{"group": url}}
		if found, err := h.healthyBut(ctx, ask, own, g.zone); found || err != nil {
			return err
		}
	}
	return lbhooks.NobodyElse("backend service " + b.name)
}

func (h *Hook) othersInPool(ctx context.Context, b *balancer, own []instance) error {
	resource := b.resource("targetPools", b.name)
	var pool targetPool
	if err := h.api.do(ctx, call{path: resource, permission: permissionPools}, &pool); err != nil {
		return err
	}
	for _, url := range pool.Instances {
		if slices.ContainsFunc(own, func(at instance) bool { return at.is(url, "") }) {
			continue
		}
		ask := call{path: resource + "/getHealth", permission: permissionPools, body: map[string]string{"instance": url}}
		if found, err := h.healthyBut(ctx, ask, own, ""); found || err != nil {
			return err
		}
	}
	return lbhooks.NobodyElse("target pool " + b.name)
}

// healthyBut asks for the health of members, and reports whether one is healthy that is none of these instances.
func (h *Hook) healthyBut(ctx context.Context, ask call, own []instance, zone string) (bool, error) {
	var answer healthAnswer
	if err := h.api.do(ctx, ask, &answer); err != nil {
		return false, err
	}
	return slices.ContainsFunc(answer.HealthStatus, func(s healthStatus) bool {
		mine := slices.ContainsFunc(own, func(at instance) bool { return at.is(s.Instance, zone) })
		return !mine && strings.ToUpper(s.HealthState) == healthy
	}), nil
}
