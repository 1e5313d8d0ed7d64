package guard

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// maxDisruptedPods is the most evictions that the API lets wait for the disruption controller.
// Source: MaxDisruptedPodSize in k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go.
const maxDisruptedPods = 2000

// EvictionAnswer is what the eviction API would say of a pod now, by its budgets alone.
type EvictionAnswer struct {
	// Code is the HTTP status: 201 allowed, 429 no budget now, 403 a budget in a bad state, 500 more than one budget.
	Code int
	// Budget is the one that decided; nil when none did.
	Budget *policyv1.PodDisruptionBudget
	// Processing says that a 429 is due only to a budget whose controller has not seen its newest generation.
	Processing bool
}

// PredictEviction answers as the eviction API would. Budgets of other namespaces and ones that do not select the pod
// are ignored.
//
// Source: EvictionREST.Create and checkAndDecrement in k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go.
func PredictEviction(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget) EvictionAnswer {
	allowed := EvictionAnswer{Code: http.StatusCreated}
	if ignoresBudgets(pod) {
		return allowed
	}
	var match []*policyv1.PodDisruptionBudget
	for _, b := range budgets {
		if selects(b, pod) {
			match = append(match, b)
		}
	}
	switch len(match) {
	case 0:
		return allowed
	case 1:
		return askBudget(pod, match[0])
	}
	return EvictionAnswer{Code: http.StatusInternalServerError, Budget: match[0]}
}

func askBudget(pod *corev1.Pod, b *policyv1.PodDisruptionBudget) EvictionAnswer {
	s := &b.Status
	if !PodReady(pod) {
		always := b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
		if always || (s.CurrentHealthy >= s.DesiredHealthy && s.DesiredHealthy > 0) {
			return EvictionAnswer{Code: http.StatusCreated, Budget: b}
		}
	}
	switch {
	case s.ObservedGeneration < b.Generation:
		return EvictionAnswer{Code: http.StatusTooManyRequests, Budget: b, Processing: true}
	case s.DisruptionsAllowed < 0, len(s.DisruptedPods) > maxDisruptedPods:
		return EvictionAnswer{Code: http.StatusForbidden, Budget: b}
	case s.DisruptionsAllowed == 0:
		return EvictionAnswer{Code: http.StatusTooManyRequests, Budget: b}
	}
	return EvictionAnswer{Code: http.StatusCreated, Budget: b}
}

// ignoresBudgets reports whether the eviction API deletes the pod without a look at budgets.
func ignoresBudgets(pod *corev1.Pod) bool {
	return Finished(pod) || pod.Status.Phase == corev1.PodPending || terminating(pod)
}

// selects reports whether a budget selects a pod. A nil selector selects nothing, an empty one everything.
func selects(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if b.Namespace != pod.Namespace {
		return false
	}
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && sel.Matches(labels.Set(pod.Labels))
}

// neverAllows reports whether a budget that says no now will say no for this pod as long as nobody changes the budget
// or the workload: it demands as many healthy pods as there are. A pod that is not ready counts for nothing, so with
// one replica the budget waits for the very pod that is to go.
func neverAllows(b *policyv1.PodDisruptionBudget) bool {
	s := &b.Status
	return s.ObservedGeneration >= b.Generation && s.ExpectedPods > 0 && s.DesiredHealthy >= s.ExpectedPods
}

// cannotBeComputed returns why the disruption controller cannot compute a budget; "" when it can.
func cannotBeComputed(b *policyv1.PodDisruptionBudget) string {
	for i := range b.Status.Conditions {
		c := &b.Status.Conditions[i]
		if c.Type == policyv1.DisruptionAllowedCondition && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason {
			if c.Message == "" {
				return "the disruption controller failed to compute it"
			}
			return c.Message
		}
	}
	return ""
}

// PodReady reports whether the condition Ready of a pod is True.
func PodReady(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Finished reports whether a pod has ended for good: nothing of it runs, and nothing serves.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func terminating(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }
