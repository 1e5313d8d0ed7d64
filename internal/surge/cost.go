package surge

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

func ready(p *corev1.Pod) bool { return guard.PodReady(p) }

// spend makes a pod the first of those that are Ready to go when its ReplicaSet is scaled down. It returns the pod with
// what its deletion cost was; nil for a pod that is nil or gone.
func (b *Bringer) spend(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if pod == nil {
		return nil, nil
	}
	err := b.cost(ctx, pod, math.MinInt32)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("set the deletion cost of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return pod, nil
}

// unspend gives a pod that is still there its former deletion cost.
func (b *Bringer) unspend(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil {
		return nil
	}
	var was any
	if text, had := pod.Annotations[corev1.PodDeletionCost]; had {
		was = text
	}
	err := b.cost(ctx, pod, was)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("take the deletion cost of pod %s/%s back: %w", pod.Namespace, pod.Name, err)
}

func (b *Bringer) cost(ctx context.Context, pod *corev1.Pod, value any) error {
	if n, ok := value.(int); ok {
		value = fmt.Sprint(n)
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "annotations": map[string]any{corev1.PodDeletionCost: value},
	}})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	_, err = b.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: claim.FieldManager})
	return err
}
