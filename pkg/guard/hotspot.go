package guard

import "fmt"

// Share is the part of a Service's traffic that its busiest endpoint carries, from 0 to 1. Balancers that send to nodes
// give each node the same, however many endpoints it has.
type Share struct {
	Before float64 `json:"before"`
	After  float64 `json:"after"`          // with the replacements where they may run
	Node   string  `json:"node,omitempty"` // of the busiest endpoint after
}

// hotter is by how much the busiest endpoint's share has to grow to be worth a finding.
const hotter = 1.5

// serving is how many endpoints a Service has on each node, of the nodes that its balancer sends to or could.
type serving struct{ before, drained, replaced, back map[string]int }

func (s *serving) nodes() ServingNodes {
	return ServingNodes{Before: len(s.before), Drained: len(s.drained), Replaced: len(s.replaced), Back: len(s.back)}
}

// serving counts the endpoints on each node: now, after the drain, with the replacements, and with the nodes back.
func (j *judgement) serving(own []*placed) serving {
	s := serving{map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}}
	for _, node := range j.cover.Nodes() {
		if !j.counts(node) {
			continue
		}
		var usable []Endpoint
		for i := range j.cover.ports {
			usable = append(usable, j.cover.ports[i].local[node].usable()...)
		}
		s.before[node] = distinct(usable)
	}
	left := map[string][]Endpoint{}
	for i := range j.cover.ports {
		for _, e := range j.cover.ports[i].left {
			if j.remains(&e) && j.counts(e.Node) {
				left[e.Node] = append(left[e.Node], e)
			}
		}
	}
	for node, endpoints := range left {
		k := distinct(endpoints)
		s.drained[node], s.replaced[node], s.back[node] = k, k, k
	}
	for _, p := range own {
		switch {
		case p.at.Node != "" && j.counts(p.at.Node):
			s.replaced[p.at.Node]++
			s.back[p.at.Node]++
		case p.back != "" && j.counts(p.back):
			s.back[p.back]++
		}
	}
	return s
}

// counts reports whether a node's endpoints serve somebody: clients inside, or the balancer, which sends there or could.
func (j *judgement) counts(node string) bool { return !j.svc.External || j.eligible(node) }

// share computes the busiest endpoint's part; nil where the balancer does not share by node.
func (j *judgement) share(s serving) *Share {
	r := &j.svc.Rotation
	if !j.svc.External || r.PodTargets != nil || r.Nobody || len(s.before) == 0 || len(s.replaced) == 0 {
		return nil
	}
	one := j.announcer(s.before)
	before, _ := busiest(s.before, one)
	if one != "" {
		if _, stays := s.replaced[one]; !stays {
			one = mostLoaded(s.replaced)
		}
	}
	after, node := busiest(s.replaced, one)
	return &Share{Before: before, After: after, Node: node}
}

// announcer is the one node that is in rotation where others could take its place but are not: a balancer that announces
// an address from one node at a time. "" where the nodes share.
func (j *judgement) announcer(serving map[string]int) string {
	in := ""
	for node := range serving {
		switch j.seat(node).In {
		case No:
		case Yes:
			if in != "" {
				return ""
			}
			in = node
		default:
			return ""
		}
	}
	if len(serving) < 2 {
		return ""
	}
	return in
}

// mostLoaded is the node whose endpoints would carry most if it were the only one: the one with the fewest.
func mostLoaded(serving map[string]int) string {
	worst := ""
	for _, node := range sortedKeys(serving) {
		if worst == "" || serving[node] < serving[worst] {
			worst = node
		}
	}
	return worst
}

// busiest is the largest part that one endpoint carries and the node it is on; only is the one node that all traffic goes
// to, if there is such a one.
func busiest(serving map[string]int, only string) (float64, string) {
	if only != "" {
		return 1 / float64(serving[only]), only
	}
	node := mostLoaded(serving)
	return 1 / float64(len(serving)*serving[node]), node
}

// hotSpot tells of an endpoint that will carry much more than any did before.
func (j *judgement) hotSpot(s *Share) {
	if s == nil || s.After < hotter*s.Before {
		return
	}
	j.add(Finding{
		Code: HotSpot, Severity: Info, Nodes: []string{s.Node},
		Message: fmt.Sprintf("the busiest endpoint may carry %.0f%% of the traffic, before the drain %.0f%%: every node gets the same share, however many endpoints it has",
			100*s.After, 100*s.Before),
		Advice: "spread the pods over the nodes, or bring an endpoint to a further node first",
	})
}
