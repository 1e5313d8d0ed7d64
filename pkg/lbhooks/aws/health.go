package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// standing is how a target group stands towards a node, or towards several, by one answer of DescribeTargetHealth.
type standing struct {
	group   group
	own     []types.TargetHealthDescription // of the nodes
	healthy int                             // other targets that are healthy
	rest    int                             // other targets that are registered and not leaving, healthy or not
	lived   bool                            // some target of the group was seen healthy, now or before
}

// look reads the health of all targets of a group: one call, and not paged by AWS.
func (h *Hook) look(ctx context.Context, g group, nodes ...*corev1.Node) (*standing, error) {
	client, err := h.api.targets(ctx, g.region)
	if err != nil {
		return nil, err
	}
	answer, err := client.DescribeTargetHealth(ctx, &elasticloadbalancingv2.DescribeTargetHealthInput{TargetGroupArn: &g.arn})
	if err != nil {
		return nil, failed(actionHealth, anything, err)
	}
	s := &standing{group: g}
	var ids []string
	for _, n := range nodes {
		ids = append(ids, targetIDs(n)...)
	}
	for i := range answer.TargetHealthDescriptions {
		d := &answer.TargetHealthDescriptions[i]
		state := stateOf(d)
		s.lived = s.lived || state == types.TargetHealthStateEnumHealthy
		switch {
		case d.Target != nil && slices.Contains(ids, value(d.Target.Id)):
			s.own = append(s.own, *d)
		case state == types.TargetHealthStateEnumHealthy:
			s.healthy++
			s.rest++
		case state != types.TargetHealthStateEnumDraining && state != types.TargetHealthStateEnumUnused:
			s.rest++
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.lived = s.lived || h.lived[g.arn]
	h.lived[g.arn] = s.lived
	return s, nil
}

// targetIDs are the names under which a node can be a target: its instance, or its addresses.
func targetIDs(n *corev1.Node) []string {
	var ids []string
	if id := instanceOf(n); id != "" {
		ids = append(ids, id)
	}
	for _, addr := range lbhooks.NodeAddresses(n) {
		ids = append(ids, addr.String())
	}
	return ids
}

func stateOf(d *types.TargetHealthDescription) types.TargetHealthStateEnum {
	if d.TargetHealth == nil {
		return ""
	}
	return d.TargetHealth.State
}

// others reports whether the group can do without the node. A group without a healthy target sends to all of them, this
// node included once it is back; only where the check is known to mean nothing, as in a UDP group of which no target was
// ever seen healthy, is it enough that others are registered.
func (s *standing) others() bool {
	return s.healthy > 0 || s.group.connectionless && !s.lived && s.rest > 0
}

// out reports whether the group has let go of the node, and what was seen. Draining counts as out when the settle time
// that follows makes up for what the balancer still sends.
func (s *standing) out(draining bool) (bool, string) {
	state, reason := s.worst()
	seen := fmt.Sprintf("%s: %s%s, %d others healthy", s.group.name, state, reason, s.healthy)
	if !s.others() {
		return false, seen + ": without a healthy one the group sends to all of its targets"
	}
	switch state {
	case absent, string(types.TargetHealthStateEnumUnused):
		return true, seen
	case string(types.TargetHealthStateEnumDraining):
		return draining, seen
	case string(types.TargetHealthStateEnumUnhealthy), string(types.TargetHealthStateEnumUnhealthyDraining):
		return s.healthy > 0, seen
	}
	return false, seen
}

// absent is the state of a node that is not among the targets.
const absent = "absent"

// order lists the states from the best proof to the worst.
var order = []string{
	absent, string(types.TargetHealthStateEnumUnused), string(types.TargetHealthStateEnumDraining),
	string(types.TargetHealthStateEnumUnhealthyDraining), string(types.TargetHealthStateEnumUnhealthy),
}

// worst is the state of the node's target that is furthest from out: a node has one target for each port.
func (s *standing) worst() (state, reason string) {
	state = absent
	rank := 0
	for i := range s.own {
		this := string(stateOf(&s.own[i]))
		at := slices.Index(order, this)
		if at < 0 {
			at = len(order)
		}
		if at >= rank {
			state, rank, reason = this, at, reasonOf(&s.own[i])
		}
	}
	return state, reason
}

func reasonOf(d *types.TargetHealthDescription) string {
	if d.TargetHealth == nil || d.TargetHealth.Reason == "" {
		return ""
	}
	_, text, found := strings.Cut(string(d.TargetHealth.Reason), ".")
	if !found {
		text = string(d.TargetHealth.Reason)
	}
	return " (" + text + ")"
}
