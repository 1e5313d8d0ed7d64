package agent

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/test/dataplane"
)

// retryInterval is how soon a write that failed is tried again: the API server may be away.
const retryInterval = 250 * time.Millisecond

// publishUntil writes the pod's status whenever it changes, and a last time when the pod has ended.
func (w *worker) publishUntil(ctx context.Context, ended <-chan struct{}) {
	var before string
	for last := false; !last; {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			last = true
		case <-w.publish:
		}
		now, err := w.patch(last)
		if err != nil {
			w.agent.log.Error("status not encoded", "pod", w.first.Name, "error", err)
			return
		}
		if now == before {
			continue
		}
		if !w.write(ctx, now) {
			return
		}
		before = now
	}
}

// write writes a status, as often as it takes; false says that the pod is no longer there.
func (w *worker) write(ctx context.Context, patch string) bool {
	for {
		_, err := w.agent.client.CoreV1().Pods(w.first.Namespace).
			Patch(ctx, w.first.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		switch {
		case err == nil:
			return true
		case apierrors.IsNotFound(err), apierrors.IsConflict(err), ctx.Err() != nil: // a conflict is another UID
			return false
		}
		w.agent.log.Warn("status not written", "pod", w.first.Name, "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(retryInterval):
		}
	}
}

// patch is the status of now as a patch for the pod of this UID alone.
func (w *worker) patch(last bool) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	status := corev1.PodStatus{
		ObservedGeneration: w.pod.Generation, Phase: w.phase(last), StartTime: &metav1.Time{Time: w.started},
		HostIP: w.agent.hostIPs[0].String(),
	}
	for _, ip := range w.agent.hostIPs {
		status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: ip.String()})
	}
	for _, ip := range w.addrs {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	if len(w.addrs) > 0 {
		status.PodIP = w.addrs[0].String()
	}
	if w.failure != nil {
		status.Reason, status.Message = "NotStarted", w.failure.Error()
	}
	ready := len(w.containers) > 0
	for _, c := range w.containers {
		s := c.status(last)
		ready = ready && s.Ready
		status.ContainerStatuses = append(status.ContainerStatuses, s)
	}
	status.Conditions = w.allConditions(ready)
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.first.UID}, "status": status})
	return string(data), err
}

func (w *worker) phase(last bool) corev1.PodPhase {
	if !last {
		for _, c := range w.containers {
			if c.cmd == nil && c.ended == nil {
				return corev1.PodPending
			}
		}
		return corev1.PodRunning
	}
	if w.failure != nil {
		return corev1.PodFailed
	}
	for _, c := range w.containers {
		if c.ended == nil || c.ended.ExitCode != 0 {
			return corev1.PodFailed
		}
	}
	return corev1.PodSucceeded
}

// allConditions computes the pod's conditions; each keeps its time while it does not change.
func (w *worker) allConditions(containersReady bool) []corev1.PodCondition {
	ready := containersReady && w.pod.Annotations[dataplane.Ready] != "false"
	for _, gate := range w.first.Spec.ReadinessGates {
		met := false
		for i := range w.pod.Status.Conditions {
			c := &w.pod.Status.Conditions[i]
			met = met || c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		}
		ready = ready && met
	}
	network := len(w.addrs) > 0
	conditions := []corev1.PodCondition{
		w.condition(corev1.PodReadyToStartContainers, network), w.condition(corev1.PodInitialized, network),
		w.condition(corev1.ContainersReady, containersReady), w.condition(corev1.PodReady, ready),
	}
	for i := range conditions {
		w.conditions[conditions[i].Type] = conditions[i]
	}
	return conditions
}

func (w *worker) condition(kind corev1.PodConditionType, holds bool) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, ObservedGeneration: w.pod.Generation}
	if holds {
		c.Status = corev1.ConditionTrue
	}
	c.LastTransitionTime = metav1.Now()
	if before, ok := w.conditions[kind]; ok && before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return c
}

// status is the container's part of the status.
func (c *container) status(last bool) corev1.ContainerStatus {
	started := c.cmd != nil
	s := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, RestartCount: c.restarts, Started: &started,
		ContainerID: c.id, Ready: started && c.serves && c.probed && !c.worker.delayed,
	}
	switch {
	case started:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: c.started}
	case c.ended != nil && (last || c.waiting == ""):
		s.State.Terminated = c.ended
		return s
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.waiting}
	}
	if c.ended != nil {
		s.LastTerminationState.Terminated = c.ended
	}
	return s
}

// finish deletes a pod that has ended, if somebody asked for that, as often as it takes.
func (a *agent) finish(ctx context.Context, pod *corev1.Pod) {
	for ctx.Err() == nil {
		var now int64
		err := a.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		a.log.Warn("pod not deleted", "pod", pod.Name, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryInterval):
		}
	}
}
