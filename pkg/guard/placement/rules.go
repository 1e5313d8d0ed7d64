package placement

import (
	corev1 "k8s.io/api/core/v1"
)

// check says why a pod cannot go to a node; "" when nothing is against it.
type check func(*node) string

// rule is one filter of the scheduler. judge looks at the pod and at the cluster once and returns what is to be asked of
// every node; nil when the rule has nothing to say about this pod.
type rule struct {
	plugin string // under k8s.io/kubernetes/pkg/scheduler/framework/plugins
	judge  func(*State, *incoming) check
	advice string // what mends it
}

// rules are the filters of the default profile in the order in which the scheduler asks them; the first that refuses a
// node is the reason that is given for it.
//
// Source: getDefaultPlugins in k8s.io/kubernetes/pkg/scheduler/apis/config/v1/default_plugins.go.
var rules = []rule{
	{"nodename", requestedNode, "drop spec.nodeName from the template"},
	{"nodeunschedulable", unschedulable, "uncordon a node"},
	{"tainttoleration", taints, "tolerate the taint, or add a node without it"},
	{"nodeaffinity", nodeAffinity, "drop the pin, or label another node"},
	{"nodeports", hostPorts, "add a node, or drop the host port"},
	{"noderesources", room, "make room or add a node"},
	{"volumerestrictions", volumeConflicts, "nothing else may use the volume"},
	{"nodevolumelimits", attachLimits, "add a node: the others can attach no further volume"},
	{"volumebinding", boundVolumes, "add a node that can reach the volume"},
	{"volumezone", volumeZones, "add a node in the volume's zone"},
	{"podtopologyspread", spread, "nodeTaintsPolicy Honor leaves cordoned and tainted nodes out; or a larger maxSkew, or a further node"},
	{"interpodaffinity", podAffinity, "add a node, or prefer in place of require"},
	{"nodedeclaredfeatures", declaredFeatures, "upgrade a node"},
}

// incoming is a pod that is looking for a node.
type incoming struct {
	*corev1.Pod
	asks  Resources
	ports []Port
	view  *view
}

// Refusal is why a pod cannot go to a node.
type Refusal struct {
	Node   string
	Reason string // "too little cpu", "taint dedicated=gpu"
	Advice string
}

// Answer says where a pod can go.
type Answer struct {
	// Unknown says why these rules cannot tell; everything else is empty then.
	Unknown string
	// Nodes are those that it can go to, sorted.
	Nodes []string
	// Unread are those that nothing is known against, but whose pods are not at hand or whose room is not known, sorted.
	Unread []string
	// Refused are the others that have not left, sorted by node.
	Refused []Refusal
}

// Fits reports whether there is, or may be, a node for the pod.
func (a *Answer) Fits() bool { return a.Unknown != "" || len(a.Nodes)+len(a.Unread) > 0 }

// unknowable says why the default scheduler's rules do not decide about a pod; "" when they do.
func (s *State) unknowable(p *corev1.Pod) string {
	switch {
	case p.Spec.SchedulerName != "" && p.Spec.SchedulerName != corev1.DefaultSchedulerName:
		return "scheduler " + p.Spec.SchedulerName + " places it"
	case len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil:
		return "it needs devices by resource claims"
	case len(p.Spec.SchedulingGates) > 0:
		return "it waits for scheduling gates: " + p.Spec.SchedulingGates[0].Name
	case p.Spec.SchedulingGroup != nil:
		return "it is placed together with its group"
	case s.volumes == nil && hasClaims(p):
		return "where its volumes are was not read"
	}
	return ""
}

// Candidates says where a pod can go as things are. The pod is only read; one that has a spec.nodeName is bound to it.
func (s *State) Candidates(p *corev1.Pod) Answer {
	a, _ := s.candidatesOf(p)
	return a
}

// candidatesOf answers as Candidates does, with the nodes that a pod can go to until the next is asked about.
func (s *State) candidatesOf(p *corev1.Pod) (a Answer, fits []*node) {
	if why := s.unknowable(p); why != "" {
		return Answer{Unknown: why}, nil
	}
	in := s.incoming(p)
	var checks []check
	var asked []*rule
	for i := range rules {
		if c := rules[i].judge(s, in); c != nil {
			checks, asked = append(checks, c), append(asked, &rules[i])
		}
	}
	fits = s.fits[:0]
	for _, n := range s.nodes {
		if n.left != "" {
			continue
		}
		switch reason, by := refusal(n, checks); {
		case reason != "":
			a.Refused = append(a.Refused, Refusal{n.name, reason, asked[by].advice})
		case n.whole && n.measured:
			fits = append(fits, n)
		default:
			a.Unread = append(a.Unread, n.name)
		}
	}
	s.fits = fits
	a.Nodes = make([]string, len(fits))
	for i, n := range fits {
		a.Nodes[i] = n.name
	}
	return a, fits
}

// refusal is the first reason against a node, with the number of the check that gave it.
func refusal(n *node, checks []check) (string, int) {
	for i, c := range checks {
		if reason := c(n); reason != "" {
			return reason, i
		}
	}
	return "", 0
}

// everywhere is a check that refuses every node for one reason.
func everywhere(reason string) check { return func(*node) string { return reason } }

func (s *State) incoming(p *corev1.Pod) *incoming {
	return &incoming{Pod: p, asks: asked(p), ports: portsOf(&p.Spec), view: s.viewOf(p)}
}
