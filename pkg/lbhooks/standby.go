package lbhooks

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Standby is a hook that sees at the balancer itself whether somebody would carry a Service without some nodes. What the
// API server calls ready may be long lost to the balancer.
type Standby interface {
	Hook
	// Others looks whether the balancer has a healthy target besides the nodes that are to leave. The error matches
	// [ErrNobodyElse] when it has none: to withdraw them would leave the Service to targets that do not serve. Any other
	// error tells nothing.
	Others(ctx context.Context, svc *corev1.Service, leaving []*corev1.Node) error
}

// NobodyElse is the error of [Standby.Others] for a group of targets, a rule, or a whole balancer.
func NobodyElse(where string) error {
	return fmt.Errorf("%w at %s: mend the others, or their health check, before a node leaves", ErrNobodyElse, where)
}
