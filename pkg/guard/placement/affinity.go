package placement

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// term is a pod affinity term, parsed. matchLabelKeys and mismatchLabelKeys are in its selector already: the API server
// writes them there when it takes the pod.
type term struct {
	spaces        sets.Set[string]
	spaceSelector labels.Selector
	selector      labels.Selector
	key           string
}

// parse parses a term of a pod in a namespace.
//
// Source: newAffinityTerm in k8s.io/kube-scheduler/framework/types.go.
func parse(t *corev1.PodAffinityTerm, namespace string) (term, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return term{}, err
	}
	spaceSelector, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return term{}, err
	}
	spaces := sets.New(t.Namespaces...)
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		spaces.Insert(namespace)
	}
	return term{spaces, spaceSelector, selector, t.TopologyKey}, nil
}

// parsed parses the terms of a pod that has a node; none of them counts where one is not valid, as in the scheduler.
func parsed(terms []corev1.PodAffinityTerm, namespace string) []term {
	var out []term
	for i := range terms {
		t, err := parse(&terms[i], namespace)
		if err != nil {
			return nil
		}
		out = append(out, t)
	}
	return out
}

// matches reports whether a pod with these labels in this namespace, which has labels of its own, is one that the term is
// about.
func (t *term) matches(namespace string, spaceLabels, of map[string]string) bool {
	return t.spans(namespace, spaceLabels) && t.selector.Matches(labels.Set(of))
}

// spans reports whether the term is about pods of a namespace.
func (t *term) spans(namespace string, spaceLabels map[string]string) bool {
	return t.spaces.Has(namespace) || t.spaceSelector.Matches(labels.Set(spaceLabels))
}

func antiAffinity(spec *corev1.PodSpec) []corev1.PodAffinityTerm {
	if spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func affinity(spec *corev1.PodSpec) []corev1.PodAffinityTerm {
	if spec.Affinity == nil || spec.Affinity.PodAffinity == nil {
		return nil
	}
	return spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// domain is a value of a topology key: one zone, one host.
type domain struct{ key, value string }

// domains is a set of domains.
type domains map[domain]bool

// mark adds the domain of a node; a node without the key is in none.
func (d domains) mark(n *node, key string) {
	if v, ok := n.object.Labels[key]; ok {
		d[domain{key, v}] = true
	}
}

// has reports whether a node is in one of the domains, by a key.
func (d domains) has(n *node, key string) bool {
	v, ok := n.object.Labels[key]
	return ok && d[domain{key, v}]
}

// podAffinity is the rule of required affinity and anti-affinity between pods, the terms of pods that are there already
// included.
//
// Source: PreFilter and Filter in interpodaffinity/filtering.go.
func podAffinity(s *State, in *incoming) check {
	near, err := terms(affinity(&in.Spec), in.Namespace)
	if err != nil {
		return everywhere("pod affinity is not valid")
	}
	far, err := terms(antiAffinity(&in.Spec), in.Namespace)
	if err != nil {
		return everywhere("pod anti-affinity is not valid")
	}
	excluded := s.excludedBy(in)
	if len(near)+len(far) == 0 && len(excluded) == 0 {
		return nil
	}
	avoided, wanted, anywhere := s.around(near, far)
	first := !anywhere && in.matchesAll(s, near)
	return func(n *node) string {
		switch {
		case !in.nearEnough(n, near, wanted, first):
			return "pod affinity"
		case anyOf(far, func(t *term) bool { return avoided.has(n, t.key) }):
			return "pod anti-affinity"
		case excluded.reject(n):
			return "anti-affinity of a pod there"
		}
		return ""
	}
}

// nearEnough reports whether in every term's domain of the node there is a pod that all terms are about; first allows a
// pod that its own terms are about where there is no such pod anywhere.
//
// Source: satisfyPodAffinity in interpodaffinity/filtering.go.
func (in *incoming) nearEnough(n *node, near []term, wanted domains, first bool) bool {
	found := true
	for i := range near {
		if _, ok := n.object.Labels[near[i].key]; !ok {
			return false
		}
		found = found && wanted.has(n, near[i].key)
	}
	return found || first
}

// terms parses the terms of a pod that is looking for a node.
func terms(of []corev1.PodAffinityTerm, namespace string) ([]term, error) {
	out := make([]term, 0, len(of))
	for i := range of {
		t, err := parse(&of[i], namespace)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func anyOf(of []term, holds func(*term) bool) bool {
	for i := range of {
		if holds(&of[i]) {
			return true
		}
	}
	return false
}

// excludedBy marks the domains in which a pod that is there already wants no pod like this one.
func (s *State) excludedBy(in *incoming) exclusion {
	out := exclusion{}
	for _, t := range s.antiIn[in.Namespace] {
		if t.selector.Matches(labels.Set(in.Labels)) {
			out.mark(t.of.on, t.key)
		}
	}
	space := labels.Set(s.spaces[in.Namespace])
	for _, t := range s.antiBy {
		if t.spaceSelector.Matches(space) && t.selector.Matches(labels.Set(in.Labels)) {
			out.mark(t.of.on, t.key)
		}
	}
	return out
}

// exclusion are the domains that some pod keeps others out of, by key.
type exclusion map[string]map[string]bool

func (e exclusion) mark(n *node, key string) {
	v, ok := n.object.Labels[key]
	if !ok {
		return
	}
	if e[key] == nil {
		e[key] = map[string]bool{}
	}
	e[key][v] = true
}

func (e exclusion) reject(n *node) bool {
	for key, values := range e {
		if v, ok := n.object.Labels[key]; ok && values[v] {
			return true
		}
	}
	return false
}

// around marks the domains with a pod that a term of far is about, and those with one that all terms of near are about;
// anywhere says that there is one of the latter in some domain.
func (s *State) around(near, far []term) (avoided, wanted domains, anywhere bool) {
	avoided, wanted = domains{}, domains{}
	if len(near)+len(far) == 0 {
		return avoided, wanted, false
	}
	for namespace, pods := range s.inSpace {
		space := s.spaces[namespace]
		about := func(t *term) bool { return t.spans(namespace, space) }
		if !anyOf(near, about) && !anyOf(far, about) {
			continue
		}
		for _, o := range pods {
			for i := range far {
				if far[i].matches(namespace, space, o.Labels) {
					avoided.mark(o.on, far[i].key)
				}
			}
			if len(near) > 0 && !anyOf(near, func(t *term) bool { return !t.matches(namespace, space, o.Labels) }) {
				for i := range near {
					wanted.mark(o.on, near[i].key)
				}
			}
		}
	}
	return avoided, wanted, len(wanted) > 0
}

// matchesAll reports whether a pod is one that all its own terms are about.
func (in *incoming) matchesAll(s *State, near []term) bool {
	return len(near) > 0 && !anyOf(near, func(t *term) bool { return !t.matches(in.Namespace, s.spaces[in.Namespace], in.Labels) })
}
