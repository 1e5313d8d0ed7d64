package guard

import (
	"maps"
	"slices"
	"strings"
)

// change is the patch that a pod needs, nil for none, and whether its cost is left to somebody else.
func (k *keeping) change(p *KeptPod) (change *KeeperChange, standDown bool) {
	marks := k.marks[p.UID]
	standDown = p.Ranked && p.others() && len(marks) > 0 && !p.Going
	was := map[string]bool{}
	for _, service := range p.Kept {
		was[service] = slices.Contains(p.Relied, service)
	}
	cost := k.cost(p)
	if maps.Equal(marks, was) && cost == CostStays {
		return nil, standDown
	}
	return &KeeperChange{Pod: p.Key, UID: p.UID, Value: keeperValue(marks), Cost: cost}, standDown
}

// cost says what becomes of a pod's cost.
func (k *keeping) cost(p *KeptPod) CostChange {
	switch {
	case p.Going:
		return CostStays
	case len(k.marks[p.UID]) > 0:
		return k.costOfMarks(p)
	case p.Cost != nil && !p.ForeignCost():
		return CostIsTaken
	}
	return CostStays
}

// costOfMarks is the change to the cost that comes with the marks of a pod; a pod that serves none of its marks keeps what it
// has until they go.
func (k *keeping) costOfMarks(p *KeptPod) CostChange {
	value, change := "", CostStays
	for i := range k.request.Serving {
		s := &k.request.Serving[i]
		if _, marked := k.marks[p.UID][s.Service]; !marked || !slices.Contains(s.Pods, p.UID) {
			continue
		}
		switch {
		case s.Sent && !shared(k.usable(s)):
			value, change = KeeperCost, CostIsSet
		case value == KeeperCost:
		case !s.Sent:
			value, change = IdleCost, CostIsIdle
		case value == "":
			value, change = SharedCost, CostIsShared
		}
	}
	if !p.Ranked || p.others() || p.Cost != nil && *p.Cost == value {
		return CostStays
	}
	return change
}

// keeperValue is the inverse of [KeeperOf].
func keeperValue(marks map[string]bool) string {
	var out []string
	for _, service := range sortedKeys(marks) {
		if !marks[service] {
			service += youngMark
		}
		out = append(out, service)
	}
	return strings.Join(out, ",")
}
