package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/guard"
)

// fieldManager is the name under which marks are written.
const fieldManager = "safedrain-gate"

// errChanged is of a pod that changed between its reading and its patch: it is to be read again.
var errChanged = errors.New("the pod changed meanwhile")

// write changes the marks of one pod, and its deletion cost, in one patch that fails with errChanged when the pod changed since
// it was read.
func (c *Controller) write(ctx context.Context, pod *corev1.Pod, change *guard.KeeperChange) error {
	patch, err := patchOf(pod, change)
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return errChanged
	case err != nil:
		return fmt.Errorf("mark pod %s: %w", change.Pod, err)
	}
	c.Log.Info("marked", "pod", change.Pod.String(), "node", pod.Spec.NodeName, "keeper", change.Value, "cost", string(change.Cost))
	return nil
}

func patchOf(pod *corev1.Pod, change *guard.KeeperChange) ([]byte, error) {
	annotations := map[string]any{guard.AnnotationKeeper: nil}
	if change.Value != "" {
		annotations[guard.AnnotationKeeper] = change.Value
	}
	switch change.Cost {
	case guard.CostIsSet:
		annotations[corev1.PodDeletionCost] = guard.KeeperCost
	case guard.CostIsIdle:
		annotations[corev1.PodDeletionCost] = guard.IdleCost
	case guard.CostIsShared:
		annotations[corev1.PodDeletionCost] = guard.SharedCost
	case guard.CostIsTaken:
		annotations[corev1.PodDeletionCost] = nil
	case guard.CostStays:
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return nil, fmt.Errorf("encode the patch of pod %s: %w", change.Pod, err)
	}
	return patch, nil
}

// standDown says once for each Service that the costs of its pods are somebody else's, so that a scale-down may take its
// keepers.
func (c *Controller) standDown(w *placeWork, pods []guard.Key, read map[types.UID]*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	for _, s := range w.serving {
		i := slices.IndexFunc(s.Pods, func(uid types.UID) bool {
			pod := read[uid]
			return pod != nil && slices.Contains(pods, guard.Key{Namespace: pod.Namespace, Name: pod.Name})
		})
		if i < 0 {
			continue
		}
		key := guard.Key{Namespace: w.namespace, Name: s.Service}
		c.mu.Lock()
		told := c.stood[key]
		c.stood[key] = true
		c.mu.Unlock()
		if told {
			continue
		}
		pod := read[s.Pods[i]].Name
		c.Log.Warn("somebody else sets the deletion costs of a Service's pods; scale-downs follow those", "service", key.String(), "pod", pod)
		if c.Events != nil {
			c.Events.Eventf(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, nil,
				corev1.EventTypeWarning, ReasonForeignCost, "MarkKeeper",
				"%s of pods such as %s is set by somebody else and stays: a scale-down may take the last pod of a node",
				corev1.PodDeletionCost, pod)
		}
	}
}

// ReasonForeignCost is the reason of the event on a Service whose pods have deletion costs that are not the gate's.
const ReasonForeignCost = "ForeignDeletionCost"

// clearTries bounds the retries of a patch that meets other writers.
const clearTries = 5

// clearPod takes the marks off one pod.
func clearPod(ctx context.Context, client kubernetes.Interface, key guard.Key) error {
	for try := 1; ; try++ {
		pod, err := client.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read pod %s: %w", key, err)
		}
		change := &guard.KeeperChange{Pod: key, UID: pod.UID}
		if p := guard.KeptPodOf(pod); p.Cost != nil && !p.ForeignCost() {
			change.Cost = guard.CostIsTaken
		}
		patch, err := patchOf(pod, change)
		if err != nil {
			return err
		}
		_, err = client.CoreV1().Pods(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: fieldManager})
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || try == clearTries:
			return fmt.Errorf("unmark pod %s: %w", key, err)
		}
	}
}
