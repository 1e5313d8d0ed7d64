package placement

import (
	"strings"

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
	if len(near)+len(far)+len(excluded) == 0 {
		return nil
	}
	avoided := s.avoided(far)
	wanted, anywhere := s.wanted(near)
	first := !anywhere && in.matchesAll(s, near)
	return func(n *node) string {
		switch {
		case !nearEnough(n, wanted, first):
			return "pod affinity"
		case anyHas(avoided, n):
			return "pod anti-affinity"
		case anyHas(excluded, n):
			return "anti-affinity of a pod there"
		}
		return ""
	}
}

func anyHas(of []domains, n *node) bool {
	for i := range of {
		if of[i].has(n.at) {
			return true
		}
	}
	return false
}

// nearEnough reports whether in every term's domain of the node there is a pod that all terms are about; first allows a
// pod that its own terms are about where there is no such pod anywhere.
//
// Source: satisfyPodAffinity in interpodaffinity/filtering.go.
func nearEnough(n *node, wanted []domains, first bool) bool {
	found := true
	for i := range wanted {
		if wanted[i].of[n.at] < 0 {
			return false
		}
		found = found && wanted[i].has(n.at)
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

// excludedBy marks the domains in which a pod that is there already wants no pod like this one.
func (s *State) excludedBy(in *incoming) []domains {
	var out []domains
	mark := func(g *antiGroup) {
		if len(g.on) == 0 || !g.selector.Matches(labels.Set(in.Labels)) {
			return
		}
		d := s.domains(g.key)
		for node := range g.on {
			d.mark(node)
		}
		out = append(out, d)
	}
	for _, g := range s.antiIn[in.Namespace] {
		mark(g)
	}
	space := labels.Set(s.spaces[in.Namespace])
	for _, g := range s.antiBy {
		if !g.spaces.Has(in.Namespace) && g.spaceSelector.Matches(space) {
			mark(g)
		}
	}
	return out
}

// avoided marks, term by term, the domains with a pod that the term is about.
func (s *State) avoided(far []term) []domains {
	out := make([]domains, len(far))
	for i := range far {
		t := &far[i]
		out[i] = s.domains(t.key)
		for node := range s.tally(t.question(), t.within(), func(o *occupant) bool {
			return t.matches(o.Namespace, s.spaces[o.Namespace], o.Labels)
		}).on {
			out[i].mark(node)
		}
	}
	return out
}

// wanted marks, term by term, the domains with a pod that all terms are about; anywhere says that there is one in some
// domain.
func (s *State) wanted(near []term) (out []domains, anywhere bool) {
	if len(near) == 0 {
		return nil, false
	}
	questions := make([]string, len(near))
	for i := range near {
		questions[i] = near[i].question()
	}
	all := s.tally(strings.Join(questions, " and "), near[0].within(), func(o *occupant) bool {
		return matchAll(near, o.Namespace, s.spaces[o.Namespace], o.Labels)
	})
	out = make([]domains, len(near))
	for i := range near {
		out[i] = s.domains(near[i].key)
		for node := range all.on {
			anywhere = out[i].mark(node) || anywhere
		}
	}
	return out, anywhere
}

func matchAll(near []term, namespace string, spaceLabels, of map[string]string) bool {
	for i := range near {
		if !near[i].matches(namespace, spaceLabels, of) {
			return false
		}
	}
	return true
}

// matchesAll reports whether a pod is one that all its own terms are about.
func (in *incoming) matchesAll(s *State, near []term) bool {
	return len(near) > 0 && matchAll(near, in.Namespace, s.spaces[in.Namespace], in.Labels)
}
