package aws

import (
	"context"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancing"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var _ lbhooks.Standby = (*Hook)(nil)

// Others looks at every target group of the Service, or at its Classic Load Balancer: each has to have a healthy target
// besides the nodes that are to leave, for one without any sends to all of its targets.
func (h *Hook) Others(ctx context.Context, svc *corev1.Service, leaving []*corev1.Node) error {
	if h.kube == nil {
		return offline()
	}
	if len(leaving) == 0 {
		return nil
	}
	f, err := h.fleet(ctx, lbhooks.Target{Service: svc, Node: leaving[0]})
	if err != nil {
		return err
	}
	if f.classic != "" {
		return h.othersInService(ctx, f, leaving)
	}
	for _, g := range f.groups {
		if g.pods {
			continue
		}
		s, err := h.look(ctx, g, leaving...)
		if err != nil {
			return err
		}
		if !s.others() {
			return lbhooks.NobodyElse("target group " + g.name)
		}
	}
	return nil
}

// othersInService looks for an instance in service besides those of the nodes.
func (h *Hook) othersInService(ctx context.Context, f *fleet, leaving []*corev1.Node) error {
	client, err := h.api.instances(ctx, f.region)
	if err != nil {
		return err
	}
	answer, err := client.DescribeInstanceHealth(ctx, &elasticloadbalancing.DescribeInstanceHealthInput{LoadBalancerName: &f.classic})
	if err != nil {
		return failed(actionInstances, anything, err)
	}
	for i := range answer.InstanceStates {
		s := &answer.InstanceStates[i]
		own := slices.ContainsFunc(leaving, func(n *corev1.Node) bool { return instanceOf(n) == value(s.InstanceId) })
		if !own && value(s.State) == inService && !strings.Contains(value(s.Description), deregisters) {
			return nil
		}
	}
	return lbhooks.NobodyElse("load balancer " + f.classic)
}
