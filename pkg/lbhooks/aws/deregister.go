package aws

import (
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// deregisters reports whether the hook itself takes nodes out for a Service: it is told to, and the groups are named by the
// Service. What a controller owns it would register again at once.
func (h *Hook) deregisters(svc *corev1.Service) bool {
	return Deregisters(h.options) && len(named(svc)) > 0
}

// deregister takes the node out of each group, one group after the other. What is about to go is recorded on the node
// first, so that a run which dies leaves nothing that cannot be put back.
func (h *Hook) deregister(ctx context.Context, t lbhooks.Target) error {
	if h.kube == nil {
		return offline()
	}
	f, err := h.fleet(ctx, t)
	if err != nil {
		return err
	}
	for _, g := range f.groups {
		if err := h.leave(ctx, g, t); err != nil {
			return err
		}
	}
	return nil
}

// leave takes the node out of one group, unless that would leave the group without a healthy target. Withdrawals from one
// group take turns, so that two nodes do not both count on each other; after the call the group is looked at again, for
// another run may have done the same elsewhere.
func (h *Hook) leave(ctx context.Context, g group, t lbhooks.Target) error {
	done, err := h.turn(ctx, g.arn)
	if err != nil {
		return err
	}
	defer done()
	s, err := h.look(ctx, g, t.Node)
	if err != nil {
		return err
	}
	going := s.registered()
	if len(going) == 0 {
		return nil
	}
	if !s.others() {
		return h.empties(g, t.Node)
	}
	if err := h.record(ctx, t, g.arn, going); err != nil {
		return err
	}
	client, err := h.api.targets(ctx, g.region)
	if err != nil {
		return err
	}
	if _, err := client.DeregisterTargets(ctx, &elasticloadbalancingv2.DeregisterTargetsInput{TargetGroupArn: &g.arn, Targets: targets(going)}); err != nil {
		return failed(actionDeregister, g.arn, err)
	}
	after, err := h.look(ctx, g, t.Node)
	if err != nil || after.others() {
		return err
	}
	if err := h.put(ctx, g.arn, going); err != nil {
		return fmt.Errorf("%w; and it could not be registered again: %w", h.empties(g, t.Node), err)
	}
	if err := h.unrecord(ctx, t, g.arn); err != nil {
		return err
	}
	return h.empties(g, t.Node)
}

func (h *Hook) empties(g group, node *corev1.Node) error {
	return fmt.Errorf("%s: node %q stays in %s: no other target there is healthy, and a group without a healthy one sends to all of its targets", Name, node.Name, g.name)
}

// turn waits for the turn of one caller at a group; done ends it.
func (h *Hook) turn(ctx context.Context, arn string) (done func(), err error) {
	h.mu.Lock()
	ch := h.turns[arn]
	if ch == nil {
		ch = make(chan struct{}, 1)
		h.turns[arn] = ch
	}
	h.mu.Unlock()
	select {
	case ch <- struct{}{}:
		return func() { <-ch }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// registered lists the node's targets in the group that are not on their way out.
func (s *standing) registered() []registration {
	var out []registration
	for i := range s.own {
		switch d := &s.own[i]; stateOf(d) {
		case types.TargetHealthStateEnumDraining:
		default:
			out = append(out, registration{ID: value(d.Target.Id), Port: value(d.Target.Port), Zone: value(d.Target.AvailabilityZone), Server: value(d.Target.QuicServerId)})
		}
	}
	slices.SortFunc(out, registration.compare)
	return out
}

// register puts back what the record on the node says, and removes from it what is back.
func (h *Hook) register(ctx context.Context, t lbhooks.Target) error {
	groups, err := h.recorded(ctx, t)
	if err != nil {
		return err
	}
	for _, arn := range sortedKeys(groups) {
		if err := h.put(ctx, arn, groups[arn]); err != nil {
			return err
		}
		if err := h.unrecord(ctx, t, arn); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// put registers targets with a group; one that is registered already stays as it is.
func (h *Hook) put(ctx context.Context, arn string, all []registration) error {
	client, err := h.api.targets(ctx, regionOfARN(arn))
	if err != nil {
		return err
	}
	if _, err := client.RegisterTargets(ctx, &elasticloadbalancingv2.RegisterTargetsInput{TargetGroupArn: &arn, Targets: targets(all)}); err != nil {
		return failed(actionRegister, arn, err)
	}
	return nil
}
