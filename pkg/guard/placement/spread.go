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
	*column
	pods    []int  // by domain
	least   int    // in the emptiest domain that counts, 0 with too few of them
	self    int    // 1 if the constraint counts the pod itself
	without string // why a node without the label is refused
	uneven  string // why one is refused that has too many
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
		c := &constraints[i]
		counts[i] = spreadCount{
			constraint: c, column: s.column(c.key),
			without: "without the label " + c.key + " of its spread", uneven: "spread over " + c.key,
		}
	}
	for i := range counts {
		s.count(in, &counts[i], counts)
	}
	return func(n *node) string {
		for i := range counts {
			c := &counts[i]
			domain := c.of[n.at]
			if domain < 0 {
				return c.without
			}
			if c.pods[domain]+c.self-c.least > c.maxSkew {
				return c.uneven
			}
		}
		return ""
	}
}

// count counts the pods of a constraint in each domain of the nodes that count.
func (s *State) count(in *incoming, c *spreadCount, all []spreadCount) {
	c.pods = make([]int, c.values)
	counts := make([]bool, c.values)
	space := in.Namespace
	var there perNode
	if !c.selector.Empty() {
		there = s.tally("spread "+space+" "+selectorText(c.selector), []string{space}, func(o *occupant) bool {
			return !o.Ends && o.Namespace == space && c.selector.Matches(labels.Set(o.Labels))
		}).on
	}
	for i, n := range s.nodes {
		if c.includes(n, in.view) && hasKeys(i, all) {
			domain := c.of[i]
			counts[domain] = true
			c.pods[domain] += there[i]
		}
	}
	c.least = math.MaxInt32
	domains := 0
	for i, pods := range c.pods {
		if counts[i] {
			c.least = min(c.least, pods)
			domains++
		}
	}
	if domains < c.minDomains {
		c.least = 0
	}
	if c.selector.Matches(labels.Set(in.Labels)) {
		c.self = 1
	}
}

// includes applies the inclusion policies of a constraint to a node.
//
// Source: matchNodeInclusionPolicies in podtopologyspread/common.go.
func (c *constraint) includes(n *node, v *view) bool {
	return (!c.affinity || v.selected[n.at]) && (!c.taints || v.taint[n.at] == "")
}

func hasKeys(node int, all []spreadCount) bool {
	for i := range all {
		if all[i].of[node] < 0 {
			return false
		}
	}
	return true
}
