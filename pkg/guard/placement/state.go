package placement

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State is a cluster as it changes while pods go and others are placed. It is used by one goroutine at a time.
type State struct {
	nodes   []*node // sorted by name
	byName  map[string]*node
	spaces  map[string]map[string]string // labels by namespace
	volumes *Volumes
	pods    map[types.UID]*occupant
	inSpace map[string][]*occupant // by namespace
	owned   map[types.UID]map[*node]int
	antiIn  map[string][]antiTerm // anti-affinity of pods that are there, by a namespace that it names
	antiBy  []antiTerm            // and that which selects namespaces
	claims  map[types.NamespacedName]int
	views   map[types.UID]*view // by owner: what the rules say of nodes alone
}

// node is a node with what is on it.
type node struct {
	object      *corev1.Node
	original    *corev1.Node // before it left
	at          int          // in State.nodes
	left        string       // why no pod is to go there; "" while it stays
	whole       bool
	measured    bool // it says what can be allocated; cut-down manifests may not
	allocatable Resources
	maxPods     int
	used        Resources
	count       int
	pods        []*occupant
}

// occupant is an Occupant on its node, with its terms parsed.
type occupant struct {
	*Occupant
	on    *node
	terms []term
}

// antiTerm is a term by which a pod that is there keeps others away.
type antiTerm struct {
	of *occupant
	*term
}

// New returns the state of a cluster before anything goes. Pods whose node is not in the cluster are left out.
func New(c *Cluster) *State {
	s := &State{
		byName: make(map[string]*node, len(c.Nodes)), spaces: c.Namespaces, volumes: c.Volumes,
		pods: make(map[types.UID]*occupant, len(c.Pods)), inSpace: map[string][]*occupant{},
		claims: map[types.NamespacedName]int{}, views: map[types.UID]*view{},
		owned: map[types.UID]map[*node]int{}, antiIn: map[string][]antiTerm{},
	}
	for i := range c.Nodes {
		o := c.Nodes[i].Object
		n := &node{
			object: o, original: o, whole: c.Nodes[i].Whole,
			measured: len(o.Status.Allocatable) > 0, allocatable: resourcesOf(o.Status.Allocatable),
		}
		pods := o.Status.Allocatable[corev1.ResourcePods]
		n.maxPods = int(pods.Value())
		s.nodes = append(s.nodes, n)
		s.byName[o.Name] = n
	}
	slices.SortFunc(s.nodes, func(a, b *node) int { return cmp.Compare(a.object.Name, b.object.Name) })
	for i, n := range s.nodes {
		n.at = i
	}
	for i := range c.Pods {
		s.add(&c.Pods[i])
	}
	return s
}

// add puts a pod on its node.
func (s *State) add(o *Occupant) {
	n, ok := s.byName[o.Node]
	if !ok {
		return
	}
	p := &occupant{Occupant: o, on: n, terms: parsed(o.Anti, o.Namespace)}
	n.pods = append(n.pods, p)
	n.used.add(&o.Requests, 1)
	n.count++
	for i := range p.terms {
		t := antiTerm{p, &p.terms[i]}
		for space := range t.spaces {
			s.antiIn[space] = append(s.antiIn[space], t)
		}
		if selectsSome(t.spaceSelector) {
			s.antiBy = append(s.antiBy, t)
		}
	}
	s.own(p, 1)
	s.inSpace[o.Namespace] = append(s.inSpace[o.Namespace], p)
	if o.UID != "" {
		s.pods[o.UID] = p
	}
	s.use(o, 1)
}

// own counts the pods of an owner on a node, those that are ending left out.
func (s *State) own(p *occupant, by int) {
	if p.Owner == "" || p.Ends {
		return
	}
	if s.owned[p.Owner] == nil {
		s.owned[p.Owner] = map[*node]int{}
	}
	s.owned[p.Owner][p.on] += by
}

// use counts the claims of a pod.
func (s *State) use(o *Occupant, by int) {
	for i := range o.Volumes {
		if c := o.Volumes[i].PersistentVolumeClaim; c != nil {
			s.claims[types.NamespacedName{Namespace: o.Namespace, Name: c.ClaimName}] += by
		}
	}
}

// Evict takes a pod off its node, with its room, ports, claims and rules. A pod that is not known is nothing.
func (s *State) Evict(uid types.UID) {
	p, ok := s.pods[uid]
	if !ok {
		return
	}
	same := func(o *occupant) bool { return o == p }
	n := p.on
	n.pods = slices.DeleteFunc(n.pods, same)
	mine := func(t antiTerm) bool { return t.of == p }
	for i := range p.terms {
		for space := range p.terms[i].spaces {
			s.antiIn[space] = slices.DeleteFunc(s.antiIn[space], mine)
		}
	}
	s.antiBy = slices.DeleteFunc(s.antiBy, mine)
	s.own(p, -1)
	n.used.add(&p.Requests, -1)
	n.count--
	s.inSpace[p.Namespace] = slices.DeleteFunc(s.inSpace[p.Namespace], same)
	delete(s.pods, uid)
	s.use(p.Occupant, -1)
}

// Leave cordons a node: it takes no pod, but its labels go on counting for spread, as those of a cordoned node do. why is
// the reason that is given for it.
func (s *State) Leave(name, why string) {
	n, ok := s.byName[name]
	if !ok {
		return
	}
	n.left = why
	n.object = cordoned(n.original, true)
	clear(s.views)
}

// Return uncordons a node.
func (s *State) Return(name string) {
	n, ok := s.byName[name]
	if !ok {
		return
	}
	n.left = ""
	n.object = cordoned(n.original, false)
	clear(s.views)
}

// cordoned returns a node as the node lifecycle controller leaves it after it was cordoned or uncordoned.
func cordoned(n *corev1.Node, on bool) *corev1.Node {
	c := *n
	c.Spec.Unschedulable = on
	c.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable })
	if on {
		c.Spec.Taints = append(c.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	return &c
}

// Place puts a pod on a node, whether or not it fits there.
func (s *State) Place(p *corev1.Pod, nodeName string) {
	o := OccupantOf(p)
	o.Node, o.Requests = nodeName, asked(p)
	s.add(&o)
}
