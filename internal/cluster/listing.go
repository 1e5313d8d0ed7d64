package cluster

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// listing sorts what was read into kinds.
func (r *reader) listing() *listing {
	l := &listing{
		custom:       map[schema.GroupKind][]*unstructured.Unstructured{},
		others:       r.others,
		knowsDaemons: r.kinds[schema.GroupKind{Group: "apps", Kind: "DaemonSet"}],
	}
	for key, e := range r.objects {
		l.add(key.gk, e.object)
	}
	return l
}

func (l *listing) add(gk schema.GroupKind, object any) {
	switch o := object.(type) {
	case *corev1.Node:
		l.nodes = append(l.nodes, o)
	case *corev1.Service:
		l.services = append(l.services, o)
	case *slice:
		l.sliceCount++
		if o != nil {
			l.slices = append(l.slices, o)
		}
	case *corev1.Pod:
		l.pods = append(l.pods, o)
	case *policyv1.PodDisruptionBudget:
		l.budgets = append(l.budgets, o)
	case *appsv1.DaemonSet:
		l.daemonSets = append(l.daemonSets, o)
	case *appsv1.Deployment:
		l.deployments = append(l.deployments, o)
	case *appsv1.ReplicaSet:
		l.replicaSets = append(l.replicaSets, o)
	case *autoscalingv2.HorizontalPodAutoscaler:
		l.autoscalers = append(l.autoscalers, o)
	case *networkingv1.NetworkPolicy:
		l.policies = append(l.policies, o)
	case *appsv1.StatefulSet:
		l.statefulSets = append(l.statefulSets, o)
	case *unstructured.Unstructured:
		l.custom[gk] = append(l.custom[gk], o)
	default:
		l.places.add(object)
	}
}
