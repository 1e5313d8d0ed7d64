package cluster

import (
	"cmp"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
)

var _ guard.HoldIndex = (*Index)(nil)

// HoldFacts returns what was read for holds in a namespace; false when nothing was.
func (ix *Index) HoldFacts(namespace string) (*guard.HoldFacts, bool) {
	f, ok := ix.snap.holds[namespace]
	return f, ok
}

// holdVerbs are what a hold does in a namespace, beside what every drain does.
var holdVerbs = []struct{ group, resource, verb string }{
	{"discovery.k8s.io", "endpointslices", "create"},
	{"discovery.k8s.io", "endpointslices", "get"},
	{"discovery.k8s.io", "endpointslices", "update"},
	{"discovery.k8s.io", "endpointslices", "delete"},
	{"", "pods", "patch"},
}

var (
	listPolicies   = Verb{Verb: "list", Resource: "networkpolicies", Group: "networking.k8s.io"}
	getReplicaSets = Verb{Verb: "get", Resource: "replicasets", Group: "apps"}
)

// holds reads what the Services of the scope that may be held need: nothing when there is none.
func (l *loader) holds(ctx context.Context, s *Snapshot) error {
	namespaces := s.toHold(l.scope)
	if len(namespaces) == 0 {
		return nil
	}
	policies, denied, err := l.policies(ctx)
	if err != nil {
		return err
	}
	s.holds = map[string]*guard.HoldFacts{}
	for namespace, owners := range namespaces {
		f := &guard.HoldFacts{Policies: policies, Owners: map[types.UID]*metav1.LabelSelector{}, Headless: s.headless(namespace)}
		if denied {
			f.Denied = append(f.Denied, listPolicies.String())
		}
		if err := l.owners(ctx, f, namespace, owners); err != nil {
			return err
		}
		for _, v := range holdVerbs {
			verb := Verb{Verb: v.verb, Resource: v.resource, Group: v.group}
			if !l.may(ctx, namespace, verb) {
				f.Denied = append(f.Denied, verb.String())
			}
		}
		s.holds[namespace] = f
	}
	return nil
}

// toHold lists the namespaces with a Service that may be held, with the ReplicaSets that own its pods.
func (s *Snapshot) toHold(scope Scope) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	nodes := scope.Nodes
	if scope.AllPods {
		nodes = nil
		for _, n := range s.nodes {
			nodes = append(nodes, n.Name)
		}
	}
	for _, node := range nodes {
		for _, i := range s.onNode[node] {
			svc := s.services[i].object
			if !externalLocal(svc) || len(svc.Spec.Selector) == 0 || !s.mayHold(svc, node, scope.Hold) {
				continue
			}
			owners := out[svc.Namespace]
			if owners == nil {
				owners = map[string]bool{}
				out[svc.Namespace] = owners
			}
			for _, p := range s.podsOn[node] {
				owner := metav1.GetControllerOf(p)
				if p.Namespace == svc.Namespace && owner != nil && owner.Kind == "ReplicaSet" && guard.Selects(svc.Spec.Selector, guard.LabelsBefore(p)) {
					owners[owner.Name] = true
				}
			}
		}
	}
	return out
}

// mayHold reports whether a flag or the Service asks for it, or pods of it on the node are held already.
func (s *Snapshot) mayHold(svc *corev1.Service, node string, flags []string) bool {
	if svc.Annotations[guard.AnnotationHold] == "true" || slices.Contains(flags, "all") || slices.Contains(flags, serviceKey(svc).String()) {
		return true
	}
	return slices.ContainsFunc(s.podsOn[node], func(p *corev1.Pod) bool {
		_, held := guard.HeldOf(p)
		return held && p.Namespace == svc.Namespace && guard.Selects(svc.Spec.Selector, guard.LabelsBefore(p))
	})
}

// headless lists the Services of a namespace that select pods and that kube-proxy does not serve, sorted.
func (s *Snapshot) headless(namespace string) []*corev1.Service {
	var out []*corev1.Service
	for key, svc := range s.raw {
		if _, served := s.at[key]; !served && key.Namespace == namespace && len(svc.Spec.Selector) > 0 {
			out = append(out, svc)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// policies lists the NetworkPolicies of the cluster; denied says that the user may not.
func (l *loader) policies(ctx context.Context) (kept []*networkingv1.NetworkPolicy, denied bool, err error) {
	in := interner{}
	err = l.pages(ctx, listPolicies, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.NetworkingV1().NetworkPolicies("").List(ctx, o)
		if apierrors.IsForbidden(err) {
			denied = true
			return "", nil
		}
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			kept = append(kept, trimPolicy(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { kept = nil })
	sortPolicies(kept)
	return kept, denied, err
}

func sortPolicies(of []*networkingv1.NetworkPolicy) {
	slices.SortFunc(of, func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (l *loader) owners(ctx context.Context, f *guard.HoldFacts, namespace string, names map[string]bool) error {
	for name := range names {
		set, err := l.clients.Kubernetes.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case apierrors.IsForbidden(err):
			f.Denied = append(f.Denied, getReplicaSets.String())
			return nil
		case err != nil:
			return err
		}
		f.Owners[set.UID] = set.Spec.Selector
	}
	return nil
}

// may asks whether the user has a permission in a namespace. Where nobody says, the user is taken to have it: what is not
// allowed after all fails before anything is changed.
func (l *loader) may(ctx context.Context, namespace string, v Verb) bool {
	asked := namespace + ": " + v.String()
	if l.clients.isAllowed(asked) {
		return true
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: v.Verb, Group: v.Group, Resource: v.Resource},
	}}
	answer, err := l.clients.Kubernetes.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err == nil && answer.Status.Allowed {
		l.clients.rememberAllowed(asked)
	}
	return err != nil || answer.Status.Allowed
}

// sealHolds makes the facts of holds from files, for every namespace: there nothing is asked for, and nothing denied.
func (s *Snapshot) sealHolds(l *listing) {
	if len(l.replicaSets)+len(l.policies) == 0 {
		return
	}
	sortPolicies(l.policies)
	s.holds = map[string]*guard.HoldFacts{}
	of := func(namespace string) *guard.HoldFacts {
		if s.holds[namespace] == nil {
			s.holds[namespace] = &guard.HoldFacts{Policies: l.policies, Owners: map[types.UID]*metav1.LabelSelector{}, Headless: s.headless(namespace)}
		}
		return s.holds[namespace]
	}
	for _, set := range l.replicaSets {
		of(set.Namespace).Owners[set.UID] = set.Spec.Selector
	}
	for _, svc := range l.services {
		of(svc.Namespace)
	}
}

// trimReplicaSet keeps which pods a ReplicaSet selects, and how many of which kind it is to have.
func trimReplicaSet(r *appsv1.ReplicaSet, in interner) *appsv1.ReplicaSet {
	trimMeta(&r.ObjectMeta, in)
	if replicas(r.Spec.Replicas) == 0 { // an old revision
		r.Spec.Template = corev1.PodTemplateSpec{}
	}
	trimPodSpec(&r.Spec.Template.Spec)
	r.Status = appsv1.ReplicaSetStatus{}
	return r
}

// trimPolicy keeps everything but managed fields.
func trimPolicy(p *networkingv1.NetworkPolicy, in interner) *networkingv1.NetworkPolicy {
	trimMeta(&p.ObjectMeta, in)
	return p
}
