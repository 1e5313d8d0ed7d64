package placement

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// constraint is a topology spread constraint that must hold, parsed. Those of ScheduleAnyway, and with them the
// scheduler's own defaults, keep no pod off a node.
type constraint struct {
	key        string
	maxSkew    int
	minDomains int
	selector   labels.Selector
	affinity   bool // nodes count only where the pod's node selector and affinity match
	taints     bool // nodes count only where the pod tolerates the taints
}

// constraintsOf parses the constraints of a pod that must hold.
//
// Source: filterTopologySpreadConstraints in podtopologyspread/common.go.
func constraintsOf(p *corev1.Pod) ([]constraint, error) {
	var out []constraint
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			return nil, err
		}
		parsed := constraint{
			key: c.TopologyKey, maxSkew: int(c.MaxSkew), minDomains: 1, selector: withKeys(selector, c.MatchLabelKeys, p.Labels),
			affinity: c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
			taints:   c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		if c.MinDomains != nil {
			parsed.minDomains = int(*c.MinDomains)
		}
		out = append(out, parsed)
	}
	return out, nil
}

// withKeys narrows a selector to pods that agree with the pod in the labels of matchLabelKeys.
func withKeys(selector labels.Selector, keys []string, of map[string]string) labels.Selector {
	same := labels.Set{}
	for _, k := range keys {
		if v, ok := of[k]; ok {
			same[k] = v
		}
	}
	requirements, selectable := selector.Requirements()
	if len(same) == 0 || !selectable {
		return selector
	}
	return labels.SelectorFromSet(same).Add(requirements...)
}

// spreadCount is how many pods there are in each domain of a constraint.
type spreadCount struct {
	*constraint
	pods  map[string]int
	least int // in the emptiest domain, 0 with too few domains
	self  int // 1 if the constraint counts the pod itself
}

// spread is the rule of topology spread constraints.
//
// Source: calPreFilterState and Filter in podtopologyspread/filtering.go.
func spread(s *State, in *incoming) check {
	constraints, err := constraintsOf(in.Pod)
	if err != nil {
		return everywhere("topology spread is not valid")
	}
	if len(constraints) == 0 {
		return nil
	}
	counts := make([]spreadCount, len(constraints))
	for i := range constraints {
		counts[i] = s.count(in, &constraints[i], constraints)
	}
	return func(n *node) string {
		for i := range counts {
			c := &counts[i]
			value, ok := n.object.Labels[c.key]
			if !ok {
				return "without the label " + c.key + " of its spread"
			}
			if c.pods[value]+c.self-c.least > c.maxSkew {
				return "spread over " + c.key
			}
		}
		return ""
	}
}

// count counts the pods of a constraint in each domain of the nodes that count.
func (s *State) count(in *incoming, c *constraint, all []constraint) spreadCount {
	out := spreadCount{constraint: c, pods: map[string]int{}, least: math.MaxInt32}
	counted := make([]bool, len(s.nodes))
	for i, n := range s.nodes {
		if c.includes(n, in.view) && hasKeys(n, all) {
			counted[i] = true
			out.pods[n.object.Labels[c.key]] = 0
		}
	}
	if !c.selector.Empty() {
		for _, o := range s.inSpace[in.Namespace] {
			if counted[o.on.at] && !o.Ends && c.selector.Matches(labels.Set(o.Labels)) {
				out.pods[o.on.object.Labels[c.key]]++
			}
		}
	}
	for _, k := range out.pods {
		out.least = min(out.least, k)
	}
	if len(out.pods) < c.minDomains {
		out.least = 0
	}
	if c.selector.Matches(labels.Set(in.Labels)) {
		out.self = 1
	}
	return out
}

// includes applies the inclusion policies of a constraint to a node.
//
// Source: matchNodeInclusionPolicies in podtopologyspread/common.go.
func (c *constraint) includes(n *node, v *view) bool {
	return (!c.affinity || v.selected[n.at]) && (!c.taints || v.taint[n.at] == "")
}

func hasKeys(n *node, all []constraint) bool {
	for i := range all {
		if _, ok := n.object.Labels[all[i].key]; !ok {
			return false
		}
	}
	return true
}
