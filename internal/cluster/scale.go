package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/guard"
)

// The kinds whose controllers the rules know.
const (
	KindDeployment  = "Deployment"
	KindStatefulSet = "StatefulSet"
	KindReplicaSet  = "ReplicaSet"
)

// NoWorkload says that a workload which was asked for does not exist.
type NoWorkload struct {
	Kind      string
	Key       guard.Key
	Elsewhere []string // namespaces in which one of that kind and name is; only known from files, sorted
}

// Error names the workload and where one of that name is.
func (e *NoWorkload) Error() string {
	text := fmt.Sprintf("%s %q not found in namespace %q", strings.ToLower(e.Kind), e.Key.Name, e.Key.Namespace)
	if len(e.Elsewhere) > 0 {
		text += "; there is one in " + strings.Join(e.Elsewhere, ", ") + ": -n " + e.Elsewhere[0]
	}
	return text
}

// scalable are the objects of files from which a scaling is judged.
type scalable struct {
	deployments  map[guard.Key]*appsv1.Deployment
	statefulSets map[guard.Key]*appsv1.StatefulSet
	replicaSets  map[guard.Key]*appsv1.ReplicaSet
	autoscalers  []*autoscalingv2.HorizontalPodAutoscaler
}

func (s *Snapshot) sealScalable(l *listing) {
	s.scalable = scalable{
		deployments: byKey(l.deployments), statefulSets: byKey(l.statefulSets), replicaSets: byKey(l.replicaSets),
		autoscalers: l.autoscalers,
	}
}

func byKey[T metav1.Object](objects []T) map[guard.Key]T {
	out := make(map[guard.Key]T, len(objects))
	for _, o := range objects {
		out[guard.Key{Namespace: o.GetNamespace(), Name: o.GetName()}] = o
	}
	return out
}

// ScaleTarget returns a workload that was read from files as the rules of a scaling want it, but for the Services behind
// which it stands. It returns a *NoWorkload when there is none, and an *Incomplete when the files hold no ReplicaSet of a
// Deployment that has replicas.
func (s *Snapshot) ScaleTarget(kind string, key guard.Key) (*guard.ScaleTarget, error) {
	t := s.target(kind, key)
	switch {
	case t == nil:
		return nil, &NoWorkload{Kind: kind, Key: key, Elsewhere: s.elsewhere(kind, key.Name)}
	case kind == KindDeployment && t.Replicas > 0 && len(t.ReplicaSets) == 0:
		return nil, &Incomplete{Kinds: []string{KindReplicaSet + " of deployment " + key.String()}}
	}
	unnamed := slices.ContainsFunc(t.Pods, func(p *corev1.Pod) bool { return p.UID == "" }) ||
		slices.ContainsFunc(t.ReplicaSets, func(r *appsv1.ReplicaSet) bool { return r.UID == "" })
	if unnamed {
		return nil, fmt.Errorf("objects of namespace %q have no metadata.uid, so nobody can tell whose pods are whose: dump them with kubectl get -o yaml", key.Namespace)
	}
	for _, a := range s.scalable.autoscalers {
		t.Autoscalers = appendAutoscaler(t.Autoscalers, a, kind, key)
	}
	return t, nil
}

func (s *Snapshot) target(kind string, key guard.Key) *guard.ScaleTarget {
	switch kind {
	case KindDeployment:
		if d := s.scalable.deployments[key]; d != nil {
			return deploymentTarget(d, s.setsOf(d.Namespace, d.UID), s.podsIn(key.Namespace))
		}
	case KindStatefulSet:
		if set := s.scalable.statefulSets[key]; set != nil {
			return statefulSetTarget(set, s.podsIn(key.Namespace))
		}
	case KindReplicaSet:
		if set := s.scalable.replicaSets[key]; set != nil {
			var siblings []*appsv1.ReplicaSet
			if owner := metav1.GetControllerOf(set); owner != nil {
				siblings = s.setsOf(set.Namespace, owner.UID)
			}
			return replicaSetTarget(set, siblings, s.podsIn(key.Namespace))
		}
	}
	return nil
}

// setsOf lists the ReplicaSets that a controller has, sorted by name.
func (s *Snapshot) setsOf(namespace string, controller types.UID) []*appsv1.ReplicaSet {
	var out []*appsv1.ReplicaSet
	for _, r := range s.scalable.replicaSets {
		if ref := metav1.GetControllerOf(r); r.Namespace == namespace && ref != nil && ref.UID == controller {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *appsv1.ReplicaSet) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (s *Snapshot) podsIn(namespace string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, pods := range s.podsOn {
		for _, p := range pods {
			if p.Namespace == namespace {
				out = append(out, p)
			}
		}
	}
	sortPods(out)
	return out
}

// elsewhere lists the namespaces in which there is a workload of that kind and name.
func (s *Snapshot) elsewhere(kind, name string) []string {
	var out []string
	add := func(key guard.Key) {
		if key.Name == name {
			out = append(out, key.Namespace)
		}
	}
	switch kind {
	case KindDeployment:
		eachKey(s.scalable.deployments, add)
	case KindStatefulSet:
		eachKey(s.scalable.statefulSets, add)
	case KindReplicaSet:
		eachKey(s.scalable.replicaSets, add)
	}
	slices.Sort(out)
	return out
}

func eachKey[T any](of map[guard.Key]T, do func(guard.Key)) {
	for key := range of {
		do(key)
	}
}

func deploymentTarget(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, pods []*corev1.Pod) *guard.ScaleTarget {
	return &guard.ScaleTarget{
		Kind: KindDeployment, Key: guard.Key{Namespace: d.Namespace, Name: d.Name}, Replicas: replicas(d.Spec.Replicas),
		Template: &d.Spec.Template, Deployment: d, ReplicaSets: sets, Pods: pods,
	}
}

func statefulSetTarget(s *appsv1.StatefulSet, pods []*corev1.Pod) *guard.ScaleTarget {
	return &guard.ScaleTarget{
		Kind: KindStatefulSet, Key: guard.Key{Namespace: s.Namespace, Name: s.Name}, Replicas: replicas(s.Spec.Replicas),
		Template: &s.Spec.Template, StatefulSet: s, Pods: pods,
	}
}

// replicaSetTarget puts the ReplicaSet before its siblings, among which it may be.
func replicaSetTarget(r *appsv1.ReplicaSet, siblings []*appsv1.ReplicaSet, pods []*corev1.Pod) *guard.ScaleTarget {
	sets := []*appsv1.ReplicaSet{r}
	for _, s := range siblings {
		if s.UID != r.UID {
			sets = append(sets, s)
		}
	}
	return &guard.ScaleTarget{
		Kind: KindReplicaSet, Key: guard.Key{Namespace: r.Namespace, Name: r.Name}, Replicas: replicas(r.Spec.Replicas),
		Template: &r.Spec.Template, ReplicaSets: sets, Pods: pods,
	}
}

func appendAutoscaler(to []guard.Autoscaler, a *autoscalingv2.HorizontalPodAutoscaler, kind string, key guard.Key) []guard.Autoscaler {
	ref := &a.Spec.ScaleTargetRef
	group, _, _ := strings.Cut(ref.APIVersion, "/")
	if a.Namespace != key.Namespace || ref.Kind != kind || ref.Name != key.Name || group != appsv1.GroupName {
		return to
	}
	of := guard.Autoscaler{
		Key: guard.Key{Namespace: a.Namespace, Name: a.Name}, Min: replicas(a.Spec.MinReplicas), Max: a.Spec.MaxReplicas,
	}
	if owner := metav1.GetControllerOf(a); owner != nil {
		of.By = owner.Kind + "/" + owner.Name
	}
	return append(to, of)
}

// ReadScaleTarget reads a workload live, with a few requests whatever the size of the cluster, as the rules of a scaling want
// it, but for the Services behind which it stands. It returns a *NoWorkload when there is none. Autoscalers that may not be
// listed are left out.
func ReadScaleTarget(ctx context.Context, c kubernetes.Interface, kind string, key guard.Key) (*guard.ScaleTarget, error) {
	t, err := readTarget(ctx, c, kind, key)
	if apierrors.IsNotFound(err) {
		return nil, &NoWorkload{Kind: kind, Key: key}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", strings.ToLower(kind), key, err)
	}
	err = eachPage(ctx, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := c.AutoscalingV2().HorizontalPodAutoscalers(key.Namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			t.Autoscalers = appendAutoscaler(t.Autoscalers, &page.Items[i], kind, key)
		}
		return page.Continue, nil
	})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list the autoscalers of %s %s: %w", strings.ToLower(kind), key, err)
	}
	return t, nil
}

func readTarget(ctx context.Context, c kubernetes.Interface, kind string, key guard.Key) (*guard.ScaleTarget, error) {
	apps := c.AppsV1()
	switch kind {
	case KindDeployment:
		d, err := apps.Deployments(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		sets, err := controlledSets(ctx, c, d.Namespace, d.UID)
		if err != nil {
			return nil, err
		}
		pods, err := selectedPods(ctx, c, d.Namespace, d.Spec.Selector)
		return deploymentTarget(d, sets, pods), err
	case KindStatefulSet:
		s, err := apps.StatefulSets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		pods, err := selectedPods(ctx, c, s.Namespace, s.Spec.Selector)
		return statefulSetTarget(s, pods), err
	case KindReplicaSet:
		r, err := apps.ReplicaSets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return readReplicaSet(ctx, c, r)
	}
	return nil, fmt.Errorf("nobody knows how a %s chooses", kind)
}

// readReplicaSet reads the siblings of a ReplicaSet too, where it has a controller, and all the pods that they select.
func readReplicaSet(ctx context.Context, c kubernetes.Interface, r *appsv1.ReplicaSet) (*guard.ScaleTarget, error) {
	owner := metav1.GetControllerOf(r)
	if owner == nil {
		pods, err := selectedPods(ctx, c, r.Namespace, r.Spec.Selector)
		return replicaSetTarget(r, nil, pods), err
	}
	siblings, err := controlledSets(ctx, c, r.Namespace, owner.UID)
	if err != nil {
		return nil, err
	}
	pods, err := selectedPods(ctx, c, r.Namespace, &metav1.LabelSelector{})
	return replicaSetTarget(r, siblings, pods), err
}

func controlledSets(ctx context.Context, c kubernetes.Interface, namespace string, controller types.UID) ([]*appsv1.ReplicaSet, error) {
	var out []*appsv1.ReplicaSet
	err := eachPage(ctx, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := c.AppsV1().ReplicaSets(namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			if ref := metav1.GetControllerOf(&page.Items[i]); ref != nil && ref.UID == controller {
				out = append(out, &page.Items[i])
			}
		}
		return page.Continue, nil
	})
	slices.SortFunc(out, func(a, b *appsv1.ReplicaSet) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

func selectedPods(ctx context.Context, c kubernetes.Interface, namespace string, selector *metav1.LabelSelector) ([]*corev1.Pod, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, err
	}
	return PodsBy(ctx, c, namespace, s)
}

// PodsBy lists, live and whole, the pods of a namespace that a selector matches: of a workload of any kind, by the selector
// of its scale.
func PodsBy(ctx context.Context, c kubernetes.Interface, namespace string, selector labels.Selector) ([]*corev1.Pod, error) {
	var out []*corev1.Pod
	err := eachPage(ctx, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		o.LabelSelector = selector.String()
		page, err := c.CoreV1().Pods(namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			out = append(out, &page.Items[i])
		}
		return page.Continue, nil
	})
	return out, err
}

// eachPage lists all pages. What expires meanwhile is an error: the lists here are those of one namespace.
func eachPage(ctx context.Context, next func(context.Context, metav1.ListOptions) (string, error)) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		token, err := next(ctx, o)
		if err != nil || token == "" {
			return err
		}
		o.Continue = token
	}
}
