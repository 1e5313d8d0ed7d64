package cluster

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// sealWorkloads turns Deployments, StatefulSets and DaemonSets into guard.Workloads, sorted by name and kind.
func (s *Snapshot) sealWorkloads(l *listing) {
	s.workloads = map[string][]*guard.Workload{}
	add := func(w *guard.Workload) { s.workloads[w.Key.Namespace] = append(s.workloads[w.Key.Namespace], w) }
	for _, d := range l.deployments {
		add(deploymentFacts(d))
	}
	for _, d := range l.statefulSets {
		add(statefulSetFacts(d))
	}
	if l.knowsDaemons {
		s.daemonSets = make(map[guard.Key]*appsv1.DaemonSet, len(l.daemonSets))
	}
	for key, d := range l.knownDaemons {
		s.daemonSets[key] = d
	}
	for _, d := range l.daemonSets {
		s.daemonSets[guard.Key{Namespace: d.Namespace, Name: d.Name}] = d
		add(daemonSetFacts(d))
	}
	for _, of := range s.workloads {
		slices.SortFunc(of, func(a, b *guard.Workload) int {
			return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind))
		})
	}
}

func deploymentFacts(d *appsv1.Deployment) *guard.Workload {
	return &guard.Workload{
		Kind: "Deployment", Key: guard.Key{Namespace: d.Namespace, Name: d.Name}, Replicas: replicas(d.Spec.Replicas),
		Labels: d.Spec.Template.Labels, Spec: &d.Spec.Template.Spec, Selector: d.Spec.Selector,
	}
}

func statefulSetFacts(d *appsv1.StatefulSet) *guard.Workload {
	return &guard.Workload{
		Kind: "StatefulSet", Key: guard.Key{Namespace: d.Namespace, Name: d.Name}, Replicas: replicas(d.Spec.Replicas),
		Labels: d.Spec.Template.Labels, Spec: &d.Spec.Template.Spec, Selector: d.Spec.Selector,
	}
}

func daemonSetFacts(d *appsv1.DaemonSet) *guard.Workload {
	return &guard.Workload{
		Kind: "DaemonSet", Key: guard.Key{Namespace: d.Namespace, Name: d.Name}, Replicas: d.Status.CurrentNumberScheduled,
		Labels: d.Spec.Template.Labels, Spec: &d.Spec.Template.Spec, Selector: d.Spec.Selector,
	}
}

// replicas reads spec.replicas, which the API server sets to 1 when it is left out.
func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
