package surge

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
)

// spent is the deletion cost that makes a pod the first of those that are Ready to go when its ReplicaSet is scaled down.
var spent = strconv.Itoa(math.MinInt32)

// unspendWithin bounds the call that gives a pod its deletion cost back; a run that is told to end makes it all the same.
const unspendWithin = 5 * time.Second

// spend gives a pod the deletion cost by which it goes first. It returns the pod as it was; nil for a pod that is nil or
// gone.
func (b *Bringer) spend(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if pod == nil {
		return nil, nil
	}
	err := b.cost(ctx, pod, &spent)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("set the deletion cost of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return pod, nil
}

// unspend gives a pod that is still there the deletion cost that it had before spend, unless that was one of an earlier run.
func (b *Bringer) unspend(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unspendWithin)
	defer cancel()
	var was *string
	if text, had := pod.Annotations[corev1.PodDeletionCost]; had && text != spent {
		was = &text
	}
	err := b.cost(ctx, pod, was)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("take the deletion cost of pod %s/%s back: %w", pod.Namespace, pod.Name, err)
}

// cost sets the deletion cost of this very pod; nil removes it. A pod of the same name and another UID is a Conflict.
func (b *Bringer) cost(ctx context.Context, pod *corev1.Pod, value *string) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "annotations": map[string]*string{corev1.PodDeletionCost: value},
	}})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	_, err = b.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: claim.FieldManager})
	return err
}
