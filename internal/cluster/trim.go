package cluster

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Annotations that no rule reads, and the size from which a foreign one is taken for a payload and not for a setting.
const (
	lastApplied       = corev1.LastAppliedConfigAnnotation
	maxAnnotationSize = 4096
	ownPrefix         = "safedrain.dev/"
)

// trimMeta drops what no rule reads from the metadata of an object and interns its labels.
func trimMeta(m *metav1.ObjectMeta, in interner) {
	m.ManagedFields = nil
	m.Namespace = in.of(m.Namespace)
	m.Labels = in.labels(m.Labels)
	for k, v := range m.Annotations {
		if k == lastApplied || (len(v) > maxAnnotationSize && !strings.HasPrefix(k, ownPrefix)) {
			delete(m.Annotations, k)
		}
	}
	if len(m.Annotations) == 0 {
		m.Annotations = nil
	}
}

// trimNode keeps metadata, spec, and of status conditions, addresses, what can be allocated and what the kubelet can do.
func trimNode(n *corev1.Node, in interner) *corev1.Node {
	trimMeta(&n.ObjectMeta, in)
	conditions := n.Status.Conditions
	for i := range conditions {
		conditions[i].Message = ""
		conditions[i].Reason = in.of(conditions[i].Reason)
	}
	n.Status = corev1.NodeStatus{
		Conditions: conditions, Addresses: n.Status.Addresses, Allocatable: n.Status.Allocatable, DeclaredFeatures: n.Status.DeclaredFeatures,
	}
	return n
}

// trimService keeps everything but managed fields: hooks read spec and status alike.
func trimService(s *corev1.Service, in interner) *corev1.Service {
	trimMeta(&s.ObjectMeta, in)
	s.Spec.Selector = in.labels(s.Spec.Selector)
	s.Status.Conditions = nil
	return s
}

// trimBudget keeps what decides about an eviction.
func trimBudget(b *policyv1.PodDisruptionBudget, in interner) *policyv1.PodDisruptionBudget {
	trimMeta(&b.ObjectMeta, in)
	if b.Spec.Selector != nil {
		b.Spec.Selector.MatchLabels = in.labels(b.Spec.Selector.MatchLabels)
	}
	return b
}

// trimPod keeps metadata, how the pod is placed, how it ends, and its phase, conditions, addresses and restarts.
func trimPod(p *corev1.Pod, in interner) *corev1.Pod {
	trimMeta(&p.ObjectMeta, in)
	settings := agentSettings(p)
	trimPodSpec(&p.Spec)
	for i := range settings {
		c, set := &p.Spec.Containers[i], &settings[i]
		c.Command, c.Args, c.Env = set.Command, set.Args, set.Env
	}
	p.Spec.NodeName = in.of(p.Spec.NodeName)
	old := p.Status
	for i := range old.Conditions {
		old.Conditions[i].Message = ""
	}
	p.Status = corev1.PodStatus{
		Phase: old.Phase, Reason: old.Reason, Conditions: old.Conditions,
		HostIP: old.HostIP, PodIP: old.PodIP, PodIPs: old.PodIPs, StartTime: old.StartTime,
		ExtendedResourceClaimStatus: old.ExtendedResourceClaimStatus,
		ContainerStatuses:           trimRestarts(old.ContainerStatuses), InitContainerStatuses: trimRestarts(old.InitContainerStatuses),
	}
	return p
}

// agentSettings returns, for each container, the arguments and literal variables of a pod that may be a balancer's agent:
// one of a DaemonSet in the host's network. Hooks read from them how the agent works; nil for every other pod.
func agentSettings(p *corev1.Pod) []corev1.Container {
	owner := metav1.GetControllerOf(p)
	if !p.Spec.HostNetwork || owner == nil || owner.Kind != "DaemonSet" {
		return nil
	}
	out := make([]corev1.Container, len(p.Spec.Containers))
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		out[i].Command, out[i].Args = c.Command, c.Args
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				out[i].Env = append(out[i].Env, e)
			}
		}
	}
	return out
}

// trimRestarts keeps how often containers were restarted, of those that were.
func trimRestarts(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range all {
		if all[i].RestartCount > 0 {
			out = append(out, corev1.ContainerStatus{Name: all[i].Name, RestartCount: all[i].RestartCount})
		}
	}
	return out
}

// trimPodSpec empties the parts of a pod spec that say what runs, and keeps those that say where and how it ends.
func trimPodSpec(s *corev1.PodSpec) {
	s.Containers = trimContainers(s.Containers)
	s.InitContainers = trimContainers(s.InitContainers)
	s.EphemeralContainers = nil
	s.ImagePullSecrets = nil
	s.SecurityContext = nil
	s.DNSConfig = nil
	s.HostAliases = nil
	for i := range s.Volumes {
		trimVolume(&s.Volumes[i])
	}
}

// trimContainers keeps names, requests, lifecycle handlers, restart policy, probes of readiness and the ports taken on the
// host.
func trimContainers(cs []corev1.Container) []corev1.Container {
	for i, c := range cs {
		kept := corev1.Container{Name: c.Name, Lifecycle: c.Lifecycle, RestartPolicy: c.RestartPolicy, ReadinessProbe: c.ReadinessProbe}
		kept.Resources.Requests = c.Resources.Requests
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				kept.Ports = append(kept.Ports, p)
			}
		}
		cs[i] = kept
	}
	return cs
}

// trimVolume drops the contents that a volume lists; its kind stays visible.
func trimVolume(v *corev1.Volume) {
	switch {
	case v.Projected != nil:
		v.Projected = &corev1.ProjectedVolumeSource{}
	case v.ConfigMap != nil:
		v.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: v.ConfigMap.LocalObjectReference}
	case v.Secret != nil:
		v.Secret = &corev1.SecretVolumeSource{SecretName: v.Secret.SecretName}
	case v.DownwardAPI != nil:
		v.DownwardAPI = &corev1.DownwardAPIVolumeSource{}
	}
}

func trimDaemonSet(d *appsv1.DaemonSet, in interner) *appsv1.DaemonSet {
	trimMeta(&d.ObjectMeta, in)
	trimPodSpec(&d.Spec.Template.Spec)
	d.Status.Conditions = nil
	return d
}

func trimDeployment(d *appsv1.Deployment, in interner) *appsv1.Deployment {
	trimMeta(&d.ObjectMeta, in)
	trimPodSpec(&d.Spec.Template.Spec)
	d.Status.Conditions = nil
	return d
}

func trimStatefulSet(s *appsv1.StatefulSet, in interner) *appsv1.StatefulSet {
	trimMeta(&s.ObjectMeta, in)
	trimPodSpec(&s.Spec.Template.Spec)
	s.Spec.VolumeClaimTemplates = nil
	s.Status.Conditions = nil
	return s
}

func trimAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler, in interner) *autoscalingv2.HorizontalPodAutoscaler {
	trimMeta(&a.ObjectMeta, in)
	a.Spec.Metrics, a.Spec.Behavior = nil, nil
	a.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
	return a
}

// trimCustom drops the managed fields and the last applied configuration of a custom object.
func trimCustom(u *unstructured.Unstructured) *unstructured.Unstructured {
	unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
	unstructured.RemoveNestedField(u.Object, "metadata", "annotations", lastApplied)
	return u
}
