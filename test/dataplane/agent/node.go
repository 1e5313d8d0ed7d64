package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// register makes the node Ready and its lease.
func (a *agent) register(ctx context.Context) error {
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "AgentReady", Message: "the agent runs pods",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return err
	}
	if _, err := a.client.CoreV1().Nodes().Patch(ctx, a.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("make node %q Ready: %w", a.node, err)
	}
	return a.renewOnce(ctx)
}

// renew keeps the lease alive until ctx ends.
func (a *agent) renew(ctx context.Context) {
	tick := time.NewTicker(a.lease)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := a.renewOnce(ctx); err != nil {
				a.log.Warn("lease not renewed", "error", err)
			}
		}
	}
}

func (a *agent) renewOnce(ctx context.Context) error {
	leases := a.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(40)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &a.node, LeaseDurationSeconds: &seconds, RenewTime: &now}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	_, err = leases.Patch(ctx, a.node, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: a.node}, Spec: spec}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	return err
}
