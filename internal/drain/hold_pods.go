package drain

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

// labelTries bounds the retries of one patch of a pod.
const labelTries = 20

// hide changes the label of a pod, and notes in the same patch what stood there. A pod that is gone, or on its way out, is
// left alone.
func (n *nodeRun) hide(ctx context.Context, dep *departure, pod *corev1.Pod) error {
	key := dep.hold.Label
	return n.persist(ctx, func(ctx context.Context) error {
		return n.relabel(ctx, pod, func(now *corev1.Pod) map[string]any {
			value := guard.HeldValue(now.UID)
			if now.Labels[key] == value {
				return nil
			}
			h, held := guard.HeldOf(now)
			if !held {
				h = guard.Held{Run: n.RunID, Node: n.name}
			}
			before := map[string]string{key: now.Labels[key]}
			for k, v := range h.Labels {
				before[k] = v
			}
			h.Labels, h.Forward = before, h.Forward || !dep.hold.Exact
			return map[string]any{
				"labels":      map[string]any{key: value},
				"annotations": map[string]any{guard.AnnotationHeld: h.String()},
			}
		})
	})
}

// relabel patches the metadata of a pod, on what stands there: change says what to write, nil for nothing, and may be
// called several times. Only the very pod of that UID is patched.
func (r *Runner) relabel(ctx context.Context, pod *corev1.Pod, change func(*corev1.Pod) map[string]any) error {
	now := pod
	for range labelTries {
		if now.DeletionTimestamp != nil || now.UID != pod.UID {
			return nil
		}
		meta := change(now)
		if meta == nil {
			return nil
		}
		meta["uid"], meta["resourceVersion"] = now.UID, now.ResourceVersion
		data, err := json.Marshal(map[string]any{"metadata": meta})
		if err != nil {
			return fmt.Errorf("encode the patch of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		_, err = r.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, data,
			metav1.PatchOptions{FieldManager: claim.FieldManager})
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		now, err = r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return fmt.Errorf("patch pod %s/%s: it changed %d times in a row under the patch; run the command again", pod.Namespace, pod.Name, labelTries)
}
