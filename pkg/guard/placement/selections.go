package placement

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Selection is a set of pods that a constraint of some pod is about, wherever in the cluster they are.
type Selection struct {
	Namespace string // "" for all
	Labels    string // a label selector; "" for all
	Of        string // a pod with that constraint, "namespace/name"
}

// Everything reports whether the selection is every pod of the cluster.
func (s Selection) Everything() bool { return s.Namespace == "" && s.Labels == "" }

// Selections lists the pods that one has to know of to judge topology spread and the affinity of these pods, each set
// once, sorted.
func Selections(pods []*corev1.Pod) []Selection {
	type set struct{ namespace, labels string }
	of := map[set]string{}
	for _, p := range pods {
		name := p.Namespace + "/" + p.Name
		constraints, err := constraintsOf(p)
		if err != nil {
			continue
		}
		for i := range constraints {
			if s := constraints[i].selector; !s.Empty() && selectsSome(s) {
				of[set{p.Namespace, s.String()}] = name
			}
		}
		for _, t := range append(slices.Clone(affinity(&p.Spec)), antiAffinity(&p.Spec)...) {
			for _, namespace := range spacesOf(&t, p.Namespace) {
				if s, err := metav1.LabelSelectorAsSelector(t.LabelSelector); err == nil && selectsSome(s) {
					of[set{namespace, s.String()}] = name
				}
			}
		}
	}
	out := make([]Selection, 0, len(of))
	for s, name := range of {
		out = append(out, Selection{s.namespace, s.labels, name})
	}
	slices.SortFunc(out, func(a, b Selection) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Labels, b.Labels))
	})
	return out
}

// selectsSome reports whether a selector can match anything.
func selectsSome(s labels.Selector) bool {
	_, selectable := s.Requirements()
	return selectable
}

// spacesOf lists the namespaces that a term is about; "" for those that it selects.
func spacesOf(t *corev1.PodAffinityTerm, own string) []string {
	switch {
	case t.NamespaceSelector != nil:
		return []string{""}
	case len(t.Namespaces) > 0:
		return t.Namespaces
	}
	return []string{own}
}

// HasClaims reports whether a pod has volumes that are claimed.
func HasClaims(p *corev1.Pod) bool { return hasClaims(p) }
