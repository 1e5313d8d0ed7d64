package cluster

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

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
	for _, a := range l.autoscalers {
		for _, w := range s.workloads[a.Namespace] {
			w.Autoscalers = appendAutoscaler(w.Autoscalers, a, w.Kind, w.Key)
		}
	}
	for _, of := range s.workloads {
		for _, w := range of {
			slices.SortFunc(w.Autoscalers, func(a, b guard.Autoscaler) int { return a.Key.Compare(b.Key) })
		}
		slices.SortFunc(of, func(a, b *guard.Workload) int {
			return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind))
		})
	}
}

func deploymentFacts(d *appsv1.Deployment) *guard.Workload {
	return &guard.Workload{
		Kind: "Deployment", Key: guard.Key{Namespace: d.Namespace, Name: d.Name}, Replicas: replicas(d.Spec.Replicas),
		Labels: d.Spec.Template.Labels, Spec: &d.Spec.Template.Spec, Selector: d.Spec.Selector, Rollout: deploymentRollout(d),
	}
}

// deploymentRollout is how a Deployment replaces its pods, by the API server's defaults where it does not say.
//
// Source: ResolveFenceposts in k8s.io/kubernetes/pkg/controller/deployment/util/deployment_util.go.
func deploymentRollout(d *appsv1.Deployment) guard.Rollout {
	r := guard.Rollout{Type: cmp.Or(string(d.Spec.Strategy.Type), string(appsv1.RollingUpdateDeploymentStrategyType))}
	if r.Type != string(appsv1.RollingUpdateDeploymentStrategyType) {
		return r
	}
	quarter := intstr.FromString("25%")
	var u appsv1.RollingUpdateDeployment
	if d.Spec.Strategy.RollingUpdate != nil {
		u = *d.Spec.Strategy.RollingUpdate
	}
	n := int(replicas(d.Spec.Replicas))
	r.Surge, r.Unavailable = part(u.MaxSurge, quarter, n, true), part(u.MaxUnavailable, quarter, n, false)
	if r.Surge == 0 && r.Unavailable == 0 {
		r.Unavailable = 1
	}
	return r
}

// part is a number of pods that is stated as such or in percent; 0 where it is neither.
func part(of *intstr.IntOrString, otherwise intstr.IntOrString, n int, up bool) int {
	k, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(of, otherwise), n, up)
	if err != nil {
		return 0
	}
	return k
}

// daemonSetRollout is how a DaemonSet replaces its pods: those of one node, before or after the old one goes.
func daemonSetRollout(d *appsv1.DaemonSet) guard.Rollout {
	r := guard.Rollout{Type: cmp.Or(string(d.Spec.UpdateStrategy.Type), string(appsv1.RollingUpdateDaemonSetStrategyType))}
	if r.Type != string(appsv1.RollingUpdateDaemonSetStrategyType) {
		return r
	}
	var u appsv1.RollingUpdateDaemonSet
	if d.Spec.UpdateStrategy.RollingUpdate != nil {
		u = *d.Spec.UpdateStrategy.RollingUpdate
	}
	n := max(1, int(d.Status.DesiredNumberScheduled))
	r.Surge = min(1, part(u.MaxSurge, intstr.FromInt32(0), n, true))
	r.Unavailable = part(u.MaxUnavailable, intstr.FromInt32(1), n, true)
	return r
}

func statefulSetFacts(d *appsv1.StatefulSet) *guard.Workload {
	return &guard.Workload{
		Kind: "StatefulSet", Key: guard.Key{Namespace: d.Namespace, Name: d.Name}, Replicas: replicas(d.Spec.Replicas),
		Labels: d.Spec.Template.Labels, Spec: &d.Spec.Template.Spec, Selector: d.Spec.Selector,
		Rollout: guard.Rollout{
			Type: cmp.Or(string(d.Spec.UpdateStrategy.Type), string(appsv1.RollingUpdateStatefulSetStrategyType)), Unavailable: 1,
		},
	}
}

func daemonSetFacts(d *appsv1.DaemonSet) *guard.Workload {
	return &guard.Workload{
		Kind: "DaemonSet", Key: guard.Key{Namespace: d.Namespace, Name: d.Name}, Replicas: d.Status.CurrentNumberScheduled,
		Labels: d.Spec.Template.Labels, Spec: &d.Spec.Template.Spec, Selector: d.Spec.Selector, Rollout: daemonSetRollout(d),
	}
}

// replicas reads spec.replicas, which the API server sets to 1 when it is left out.
func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
