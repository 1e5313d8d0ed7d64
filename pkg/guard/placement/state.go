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
	anti    map[string]*antiGroup   // required anti-affinity of pods that are there
	antiIn  map[string][]*antiGroup // by a namespace that its term names
	antiBy  []*antiGroup            // and those that select namespaces
	claims  map[types.NamespacedName]int
	changes []change

	// What follows is kept because it is asked for again; it can be forgotten at any time.
	columns map[string]*column
	tallies map[string]*tally
	tallied map[string][]*tally // by namespace; "" for those of all
	views   map[string]*view    // what the rules say of nodes alone, by what a template says of nodes
	fits    []*node             // room for the answer about one pod
}

// node is a node with what is on it.
type node struct {
	name        string
	object      *corev1.Node
	original    *corev1.Node // before it left
	cordoned    bool
	at          int    // in State.nodes
	left        string // why no pod is to go there; "" while it stays
	whole       bool
	measured    bool // it says what can be allocated; cut-down manifests may not
	allocatable Resources
	maxPods     int
	used        Resources
	pods        []*occupant
	ports       []Port    // of its pods
	attached    *attached // its volumes; nil until it is asked for, and after a change
}

// occupant is an Occupant on its node, with the terms by which it keeps others away.
type occupant struct {
	*Occupant
	on   *node
	anti []*antiGroup
}

// change is one thing that was done to a state: a pod came or went, or a node left.
type change struct {
	came, went *occupant
	left       *node
}

// New returns the state of a cluster before anything goes. Pods whose node is not in the cluster are left out.
func New(c *Cluster) *State {
	s := &State{
		byName: make(map[string]*node, len(c.Nodes)), spaces: c.Namespaces, volumes: c.Volumes,
		pods: make(map[types.UID]*occupant, len(c.Pods)), inSpace: map[string][]*occupant{},
		owned: map[types.UID]map[*node]int{}, claims: map[types.NamespacedName]int{},
		anti: map[string]*antiGroup{}, antiIn: map[string][]*antiGroup{},
		columns: map[string]*column{}, tallies: map[string]*tally{}, tallied: map[string][]*tally{}, views: map[string]*view{},
	}
	nodes := make([]node, len(c.Nodes)) // side by side: every pod goes through all of them
	for i := range c.Nodes {
		o := c.Nodes[i].Object
		n := &nodes[i]
		*n = node{
			name: o.Name, object: o, original: o, cordoned: o.Spec.Unschedulable, whole: c.Nodes[i].Whole,
			measured: len(o.Status.Allocatable) > 0, allocatable: resourcesOf(o.Status.Allocatable),
		}
		pods := o.Status.Allocatable[corev1.ResourcePods]
		n.maxPods = int(pods.Value())
		s.nodes = append(s.nodes, n)
		s.byName[o.Name] = n
	}
	slices.SortFunc(s.nodes, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	for i, n := range s.nodes {
		n.at = i
	}
	occupants := make([]occupant, len(c.Pods))
	for i := range c.Pods {
		o := &c.Pods[i]
		if n, ok := s.byName[o.Node]; ok {
			occupants[i] = occupant{o, n, s.groupsOf(o.Anti, o.Namespace)}
			s.come(&occupants[i])
		}
	}
	return s
}

// come puts a pod on its node.
func (s *State) come(p *occupant) {
	n := p.on
	n.pods = append(n.pods, p)
	n.ports = append(n.ports, p.Ports...)
	s.inSpace[p.Namespace] = append(s.inSpace[p.Namespace], p)
	if p.UID != "" {
		s.pods[p.UID] = p
	}
	s.reckon(p, 1)
}

// goes takes a pod off its node.
func (s *State) goes(p *occupant) {
	same := func(o *occupant) bool { return o == p }
	n := p.on
	n.pods = slices.DeleteFunc(n.pods, same)
	if len(p.Ports) > 0 {
		n.ports = n.ports[:0]
		for _, o := range n.pods {
			n.ports = append(n.ports, o.Ports...)
		}
	}
	s.inSpace[p.Namespace] = slices.DeleteFunc(s.inSpace[p.Namespace], same)
	delete(s.pods, p.UID)
	s.reckon(p, -1)
}

// reckon adds what a pod takes and says to the sums, by times.
func (s *State) reckon(p *occupant, by int) {
	p.on.used.add(&p.Requests, int64(by))
	for _, g := range p.anti {
		g.on.add(p.on.at, by)
	}
	if p.Owner != "" && !p.Ends {
		if s.owned[p.Owner] == nil {
			s.owned[p.Owner] = map[*node]int{}
		}
		s.owned[p.Owner][p.on] += by
	}
	for i := range p.Volumes {
		p.on.attached = nil
		if c := p.Volumes[i].PersistentVolumeClaim; c != nil {
			s.claims[types.NamespacedName{Namespace: p.Namespace, Name: c.ClaimName}] += by
		}
	}
	s.tallyAll(p, by)
}

// Evict takes a pod off its node, with its room, ports, claims and rules. A pod that is not known is nothing.
func (s *State) Evict(uid types.UID) {
	if p, ok := s.pods[uid]; ok {
		s.goes(p)
		s.changes = append(s.changes, change{went: p})
	}
}

// Place puts a pod on a node, whether or not it fits there.
func (s *State) Place(p *corev1.Pod, nodeName string) {
	n, ok := s.byName[nodeName]
	if !ok {
		return
	}
	o := OccupantOf(p)
	o.Node, o.Requests = nodeName, asked(p)
	placed := &occupant{&o, n, s.groupsOf(o.Anti, o.Namespace)}
	s.come(placed)
	s.changes = append(s.changes, change{came: placed})
}

// Leave cordons a node: it takes no pod, but its labels go on counting for spread, as those of a cordoned node do. why is
// the reason that is given for it.
func (s *State) Leave(name, why string) {
	if n, ok := s.byName[name]; ok {
		n.left = why
		s.cordon(n, cordoned(n.original, true))
		s.changes = append(s.changes, change{left: n})
	}
}

// Return uncordons a node.
func (s *State) Return(name string) {
	if n, ok := s.byName[name]; ok {
		n.left = ""
		s.cordon(n, cordoned(n.original, false))
		s.changes = append(s.changes, change{left: n})
	}
}

func (s *State) cordon(n *node, as *corev1.Node) {
	n.object, n.cordoned = as, as.Spec.Unschedulable
	for _, v := range s.views {
		v.see(n)
	}
}

// undo takes back every change since the state was made.
func (s *State) undo() {
	for _, c := range slices.Backward(s.changes) {
		switch {
		case c.came != nil:
			s.goes(c.came)
		case c.went != nil:
			s.come(c.went)
		default:
			c.left.left = ""
			s.cordon(c.left, c.left.original)
		}
	}
	s.changes = s.changes[:0]
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
