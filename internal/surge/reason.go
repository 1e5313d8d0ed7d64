package surge

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// replicas is the number that the Deployment has now.
func (w *workload) replicas() int {
	if w.deployment.Spec.Replicas == nil {
		return 1
	}
	return int(*w.deployment.Spec.Replicas)
}

func (w *workload) severalOwners() string {
	if len(w.owners) < 2 {
		return ""
	}
	names := make([]string, len(w.owners))
	for i := range w.owners {
		names[i] = w.owners[i].lever.Name
	}
	return "more than one autoscaler scales it: " + strings.Join(names, ", ")
}

// atMost returns why an autoscaler does not let a number of replicas be.
func (w *workload) atMost(wanted int) string {
	if len(w.owners) == 0 || int64(wanted) <= w.owners[0].most {
		return ""
	}
	l := w.owners[0].lever
	return fmt.Sprintf("%s/%s is at its largest number, %d: raise it by one", l.Kind, l.Name, w.owners[0].most)
}

// rollout returns why the pods of two templates cannot be told apart.
func (w *workload) rollout() string {
	s := &w.deployment.Status
	switch {
	case s.Replicas <= s.UpdatedReplicas:
		return ""
	case w.deployment.Spec.Paused:
		return "its rollout is paused midway: resume or undo it first"
	}
	return "a rollout is under way: wait for its end"
}

// overQuota returns which quota has no room for one more pod. Quotas with scopes are left to the API server.
func (w *workload) overQuota(pod *corev1.Pod) string {
	needs := needsOf(pod)
	for i := range w.quotas {
		q := &w.quotas[i]
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
			hard := q.Status.Hard[name]
			need, counts := needs[name]
			taken := q.Status.Used[name]
			used := taken.DeepCopy()
			if used.Add(need); counts && used.Cmp(hard) > 0 {
				return fmt.Sprintf("quota %s has no room for one more pod: %s of %s %s are used", q.Name, taken.String(), hard.String(), name)
			}
		}
	}
	return ""
}

// needsOf is what a pod takes of a quota.
func needsOf(pod *corev1.Pod) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1"), "count/pods": resource.MustParse("1")}
	for name, q := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		out[name] = q
		out["requests."+name] = q
	}
	for name, q := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}) {
		out["limits."+name] = q
	}
	return out
}

// sharedVolume returns the claim of a pod that no second pod on another node can have.
func (f *finder) sharedVolume(pod *corev1.Pod) string {
	if f.Places == nil || f.Places.Volumes == nil {
		return ""
	}
	for i := range pod.Spec.Volumes {
		v := pod.Spec.Volumes[i].PersistentVolumeClaim
		if v == nil {
			continue
		}
		c := f.Places.Volumes.Claims[types.NamespacedName{Namespace: pod.Namespace, Name: v.ClaimName}]
		if c == nil || len(c.Spec.AccessModes) == 0 || slices.ContainsFunc(c.Spec.AccessModes, sharedByNodes) {
			continue
		}
		return fmt.Sprintf("its volume claim %s is %s: no pod on another node can have it beside this one", v.ClaimName, c.Spec.AccessModes[0])
	}
	return ""
}

func sharedByNodes(m corev1.PersistentVolumeAccessMode) bool {
	return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
}
