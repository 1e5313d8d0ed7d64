package placement

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// mostKept bounds the tallies and the views that a state keeps: each distinct constraint, and each distinct template, is one.
const mostKept = 1024

// column is one label of the nodes: by node the number of its value, -1 where the node lacks the label.
type column struct {
	of     []int32
	values int
}

// column returns a label of the nodes. It never changes: nodes come with their labels and keep them.
func (s *State) column(key string) *column {
	if c, ok := s.columns[key]; ok {
		return c
	}
	c, numbers := &column{of: make([]int32, len(s.nodes))}, map[string]int32{}
	for i, n := range s.nodes {
		value, ok := n.object.Labels[key]
		if !ok {
			c.of[i] = -1
			continue
		}
		number, ok := numbers[value]
		if !ok {
			number = int32(len(numbers)) //nolint:gosec // at most the number of nodes
			numbers[value] = number
		}
		c.of[i] = number
	}
	c.values = len(numbers)
	s.columns[key] = c
	return c
}

// domains are some values of a label.
type domains struct {
	*column
	in []bool // by number of the value; nil for none
}

func (s *State) domains(key string) domains { return domains{column: s.column(key)} }

// mark adds the domain of a node and reports whether the node is in one.
func (d *domains) mark(node int) bool {
	value := d.of[node]
	if value < 0 {
		return false
	}
	if d.in == nil {
		d.in = make([]bool, d.values)
	}
	d.in[value] = true
	return true
}

// has reports whether a node is in one of the domains.
func (d *domains) has(node int) bool { return d.in != nil && d.of[node] >= 0 && d.in[d.of[node]] }

// perNode are counts by the number of a node, without those that are 0.
type perNode map[int]int

func (c perNode) add(node, by int) {
	if c[node] += by; c[node] == 0 {
		delete(c, node)
	}
}

// tally counts the pods that a constraint is about. It is kept up to date as pods come and go, so that the pods of a
// cluster are gone through once for a constraint, and not for every pod that has it.
type tally struct {
	about func(*occupant) bool
	on    perNode
}

// tally returns the count of the pods that a question is about; spaces are the namespaces that they can be in, nil for all.
func (s *State) tally(question string, spaces []string, about func(*occupant) bool) *tally {
	if t, ok := s.tallies[question]; ok {
		return t
	}
	if len(s.tallies) >= mostKept {
		clear(s.tallies)
		clear(s.tallied)
	}
	t := &tally{about: about, on: perNode{}}
	s.tallies[question] = t
	from := spaces
	if spaces == nil {
		from, spaces = slices.Collect(maps.Keys(s.inSpace)), []string{""}
	}
	for _, space := range spaces {
		s.tallied[space] = append(s.tallied[space], t)
	}
	for _, space := range from {
		for _, o := range s.inSpace[space] {
			t.count(o, 1)
		}
	}
	return t
}

func (t *tally) count(o *occupant, by int) {
	if t.about(o) {
		t.on.add(o.on.at, by)
	}
}

// tallyAll tells the tallies of a pod that came or went.
func (s *State) tallyAll(o *occupant, by int) {
	for _, space := range [...]string{o.Namespace, ""} { // "": tallies over all namespaces
		for _, t := range s.tallied[space] {
			t.count(o, by)
		}
	}
}

// selectorText tells selectors apart; that which selects nothing and that which selects all both print as "".
func selectorText(s labels.Selector) string {
	if !selectsSome(s) {
		return "none"
	}
	return "by " + s.String()
}

// question tells terms apart by the pods that they are about.
func (t *term) question() string {
	return strings.Join(slices.Sorted(maps.Keys(t.spaces)), ",") + "|" + selectorText(t.spaceSelector) + "|" + selectorText(t.selector)
}

// within are the namespaces of the pods that a term is about; nil where it selects them.
func (t *term) within() []string {
	if selectsSome(t.spaceSelector) {
		return nil
	}
	return slices.Sorted(maps.Keys(t.spaces))
}

// antiGroup are all pods that are there and keep others away by the same term.
type antiGroup struct {
	term
	on perNode
}

// groupsOf returns the groups of a pod that has a node, by its required anti-affinity; none where a term is not valid.
func (s *State) groupsOf(terms []corev1.PodAffinityTerm, namespace string) []*antiGroup {
	var out []*antiGroup
	for i := range terms {
		text, err := json.Marshal(&terms[i])
		if err != nil {
			return nil
		}
		key := namespace + " " + string(text)
		g, ok := s.anti[key]
		if !ok {
			t, err := parse(&terms[i], namespace)
			if err != nil {
				return nil
			}
			g = &antiGroup{t, perNode{}}
			s.anti[key] = g
			for space := range t.spaces {
				s.antiIn[space] = append(s.antiIn[space], g)
			}
			if selectsSome(t.spaceSelector) {
				s.antiBy = append(s.antiBy, g)
			}
		}
		out = append(out, g)
	}
	return out
}
