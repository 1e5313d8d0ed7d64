package surge

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// workload is what owns a pod that goes, and what owns its number of replicas.
type workload struct {
	kind       string // as in an owner reference; "Pod" where nothing owns it
	key        guard.Key
	deployment *appsv1.Deployment // nil where it is none
	owners     []owner            // autoscalers of it
	lever      *reading           // live; nil from files
	quotas     []corev1.ResourceQuota
	reason     string // why it takes no further replica
}

// owner is an autoscaler.
type owner struct {
	lever Lever
	least int64
	most  int64
}

// Source finds the workloads of pods.
type Source interface {
	// ownerOf returns the workload of a pod.
	ownerOf(ctx context.Context, pod *corev1.Pod) (*workload, error)
}

// noSurge says why pods of a kind of owner cannot have one more of their kind beside them for a while.
var noSurge = map[string]string{
	"StatefulSet": "its pods have fixed names and no extra one comes for a while; where its application allows it, add a replica by hand",
	"DaemonSet":   "a DaemonSet has one pod a node; another node has its own",
	"Job":         "a Job is not a server with replicas",
	"Node":        "it is a static pod of its node",
}

// otherOwner is the workload of a pod that no Deployment owns.
func otherOwner(pod *corev1.Pod, ref *metav1.OwnerReference) *workload {
	if ref == nil {
		return &workload{kind: "Pod", key: guard.Key{Namespace: pod.Namespace, Name: pod.Name}, reason: "no controller owns it, so there is nothing to scale"}
	}
	w := &workload{kind: ref.Kind, key: guard.Key{Namespace: pod.Namespace, Name: ref.Name}, reason: noSurge[ref.Kind]}
	if w.reason == "" {
		w.reason = fmt.Sprintf("only Deployments are scaled for it, and this is a %s", ref.Kind)
	}
	return w
}

// live reads workloads from the API server, each ReplicaSet and each namespace once.
type live struct {
	*Bringer
	bySet map[guard.Key]*workload
	sizes map[string][]autoscalingv2.HorizontalPodAutoscaler
	quota map[string][]corev1.ResourceQuota
}

// Live is the source of a cluster.
func (b *Bringer) Live() Source {
	return &live{
		Bringer: b, bySet: map[guard.Key]*workload{}, sizes: map[string][]autoscalingv2.HorizontalPodAutoscaler{},
		quota: map[string][]corev1.ResourceQuota{},
	}
}

func (l *live) ownerOf(ctx context.Context, pod *corev1.Pod) (*workload, error) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != cluster.KindReplicaSet {
		return otherOwner(pod, ref), nil
	}
	set := guard.Key{Namespace: pod.Namespace, Name: ref.Name}
	if w := l.bySet[set]; w != nil {
		return w, nil
	}
	w, err := l.deploymentOf(ctx, pod, set)
	if err != nil {
		return nil, fmt.Errorf("read the workload of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	l.bySet[set] = w
	return w, nil
}

func (l *live) deploymentOf(ctx context.Context, pod *corev1.Pod, set guard.Key) (*workload, error) {
	rs, err := l.Client.AppsV1().ReplicaSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &workload{kind: cluster.KindReplicaSet, key: set, reason: "its ReplicaSet is gone"}, nil
	}
	if err != nil {
		return nil, err
	}
	ref := metav1.GetControllerOf(rs)
	if ref == nil || ref.Kind != cluster.KindDeployment {
		if ref == nil {
			ref = metav1.GetControllerOf(pod)
		}
		return otherOwner(pod, ref), nil
	}
	w := &workload{kind: cluster.KindDeployment, key: guard.Key{Namespace: set.Namespace, Name: ref.Name}}
	if w.deployment, err = l.Client.AppsV1().Deployments(set.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if err := l.autoscalers(ctx, w); err != nil {
		return nil, err
	}
	if w.quotas, err = l.quotas(ctx, set.Namespace); err != nil {
		return nil, err
	}
	if w.lever, err = l.read(ctx, w.owns()); err != nil {
		return nil, err
	}
	return w, nil
}

// owns is the lever of a Deployment: its own replicas, unless an autoscaler owns them.
func (w *workload) owns() Lever {
	if len(w.owners) > 0 {
		return w.owners[0].lever
	}
	return Lever{kindDeployment, w.key.Name, w.key}
}

// autoscalers finds what scales a Deployment: an autoscaler, or the object of KEDA that owns it.
func (l *live) autoscalers(ctx context.Context, w *workload) error {
	ns := w.key.Namespace
	if _, known := l.sizes[ns]; !known {
		list, err := l.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list the autoscalers of namespace %q: %w", ns, err)
		}
		l.sizes[ns] = list.Items
	}
	for i := range l.sizes[ns] {
		h := &l.sizes[ns][i]
		if !scales(h, w.key.Name) {
			continue
		}
		w.owners = append(w.owners, owner{leverOf(h, w.key), leastOf(h), int64(h.Spec.MaxReplicas)})
	}
	return nil
}

// scales reports whether an autoscaler is that of a Deployment.
func scales(h *autoscalingv2.HorizontalPodAutoscaler, deployment string) bool {
	ref := &h.Spec.ScaleTargetRef
	group, _, _ := strings.Cut(ref.APIVersion, "/")
	return ref.Kind == cluster.KindDeployment && ref.Name == deployment && group == appsv1.GroupName
}

// leverOf is what owns the least of an autoscaler: itself, or the ScaledObject that it was made from.
func leverOf(h *autoscalingv2.HorizontalPodAutoscaler, deployment guard.Key) Lever {
	if name := scaledObjectOf(h); name != "" {
		return Lever{kindScaledObject, name, deployment}
	}
	return Lever{kindAutoscaler, h.Name, deployment}
}

// scaledObjectOf names the ScaledObject that KEDA made an object from; "" where it was not.
func scaledObjectOf(o metav1.Object) string {
	ref := metav1.GetControllerOf(o)
	if ref == nil || ref.Kind != "ScaledObject" || !strings.HasPrefix(ref.APIVersion, kinds[kindScaledObject].resource.Group+"/") {
		return ""
	}
	return ref.Name
}

func leastOf(h *autoscalingv2.HorizontalPodAutoscaler) int64 {
	if h.Spec.MinReplicas == nil {
		return 1
	}
	return int64(*h.Spec.MinReplicas)
}

// quotas lists those of a namespace; none where they may not be read.
func (l *live) quotas(ctx context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	if known, ok := l.quota[namespace]; ok {
		return known, nil
	}
	list, err := l.Client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list the quotas of namespace %q: %w", namespace, err)
	}
	if err == nil {
		l.quota[namespace] = list.Items
	}
	return l.quota[namespace], nil
}

// files finds workloads in what was read from files.
type files struct{ snap *cluster.Snapshot }

// Files is the source of objects in files.
func Files(s *cluster.Snapshot) Source { return files{s} }

func (f files) ownerOf(_ context.Context, pod *corev1.Pod) (*workload, error) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != cluster.KindReplicaSet {
		return otherOwner(pod, ref), nil
	}
	set, err := f.snap.ScaleTarget(cluster.KindReplicaSet, guard.Key{Namespace: pod.Namespace, Name: ref.Name})
	if err != nil {
		return unknown(pod, ref), nil //nolint:nilerr // a dump without ReplicaSets: the answer is that nobody can tell
	}
	of := metav1.GetControllerOf(set.ReplicaSets[0])
	if of == nil || of.Kind != cluster.KindDeployment {
		if of == nil {
			of = ref
		}
		return otherOwner(pod, of), nil
	}
	key := guard.Key{Namespace: pod.Namespace, Name: of.Name}
	target, err := f.snap.ScaleTarget(cluster.KindDeployment, key)
	if err != nil {
		return unknown(pod, of), nil //nolint:nilerr // as above, without the Deployment
	}
	w := &workload{kind: cluster.KindDeployment, key: key, deployment: target.Deployment}
	for _, a := range target.Autoscalers {
		w.owners = append(w.owners, owner{Lever{kindAutoscaler, a.Key.Name, key}, int64(a.Min), int64(a.Max)})
	}
	return w, nil
}

// unknown is a workload that is not in the files.
func unknown(pod *corev1.Pod, ref *metav1.OwnerReference) *workload {
	return &workload{
		kind: ref.Kind, key: guard.Key{Namespace: pod.Namespace, Name: ref.Name},
		reason: "the files do not have the " + ref.Kind + " that owns it",
	}
}
