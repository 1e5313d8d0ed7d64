package guard

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// empties reports the nodes that lose their last endpoint, and the pods whose staying would spare those that need not.
func (s *scaling) empties() {
	for _, j := range s.judgements {
		j.count()
		j.plan.Endpoints.After -= s.draw.takesOf(j)
	}
	if s.draw.count == 0 {
		return
	}
	footholds := s.footholds((*judgement).sentTo)
	e, b := emptied(footholds, &s.draw), choose(footholds, &s.draw)
	avoidable := false
	for i := range s.judgements {
		avoidable = s.emptiesOf(i, &e, &b) || avoidable
	}
	if avoidable {
		s.keepers(footholds, &b)
	}
	s.emptiesInside()
}

// takesOf is the most endpoints of a Service that count as left and that a draw takes.
func (d *draw) takesOf(j *judgement) int {
	left := map[types.UID]bool{}
	for i := range j.cover.ports {
		for k := range j.cover.ports[i].left {
			if e := &j.cover.ports[i].left[k]; j.remains(e) && (!j.svc.External || j.eligible(e.Node)) {
				left[e.Pod] = true
			}
		}
	}
	most := 0
	for _, c := range d.cases {
		n := 0
		for _, v := range c.sure {
			n += int(bit(left[v.pod.UID]))
		}
		for _, t := range c.ties {
			in := 0
			for _, p := range t.pods {
				in += int(bit(left[p.UID]))
			}
			n += min(t.take, in)
		}
		most = max(most, n)
	}
	return most
}

// emptiesOf adds the rows and the finding of one Service, and reports whether another choice would empty fewer of its nodes.
func (s *scaling) emptiesOf(i int, e *emptying, b *best) bool {
	j := s.judgements[i]
	var nodes []string
	certain := 0
	for at := range e.possible {
		if at.service == i {
			nodes = append(nodes, at.node)
			certain += int(bit(e.certain[at]))
		}
	}
	if len(nodes) == 0 {
		return false
	}
	slices.Sort(nodes)
	for _, n := range nodes {
		j.plan.Nodes = append(j.plan.Nodes, NodeRow{
			Name: n, Before: StateServing, After: StateEmpty, InRotation: j.seat(n).In, May: !e.certain[spot{i, n}],
		})
	}
	f := Finding{Code: ScaleEmptiesNode, Severity: Warn, Nodes: nodes}
	verb := "loses its last endpoint"
	switch {
	case certain == 0:
		verb = "may lose its last endpoint"
	case certain < len(nodes):
		verb = "loses its last endpoint, or may"
	}
	avoidable := e.worst[i] > b.empty[i]
	switch {
	case !s.target.known():
		f.Message = fmt.Sprintf("%s: nobody knows which pods a %s takes", verb, s.target.Kind)
		f.Advice = "take pods away by hand, or take nodes out of the balancer first"
		j.add(f)
		return false
	case avoidable:
		f.Message = fmt.Sprintf("%s, although another choice of %s empties %s", verb, plural(s.draw.count, "pod"), fewerThan(b.empty[i]))
		f.Advice = s.spare(b)
		if !s.off[i] {
			f.Severity = Block
		}
	default:
		f.Message = fmt.Sprintf("%s, whichever %s", verb, whichever(s.draw.count))
		f.Advice = "more replicas, or take nodes out of the balancer first"
	}
	j.add(f)
	return avoidable
}

func whichever(n int) string {
	if n == 1 {
		return "pod goes"
	}
	return fmt.Sprintf("%d pods go", n)
}

func fewerThan(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("only %d", n)
}

// known reports whether guard knows how the controller chooses.
func (t *ScaleTarget) known() bool { return t.StatefulSet != nil || len(t.ReplicaSets) > 0 }

// emptiesInside warns of nodes whose own clients lose a Service of internal policy Local.
func (s *scaling) emptiesInside() {
	footholds := s.footholds(func(j *judgement, _ string) bool { return j.svc.Internal })
	e := emptied(footholds, &s.draw)
	nodes := map[int][]string{}
	for at := range e.possible {
		nodes[at.service] = append(nodes[at.service], at.node)
	}
	for i, j := range s.judgements {
		if len(nodes[i]) == 0 {
			continue
		}
		slices.Sort(nodes[i])
		j.add(Finding{
			Code: InternalLosesLocal, Severity: Warn, Nodes: nodes[i],
			Message: "internalTrafficPolicy Local: clients on the node lose the Service, or may",
			Advice:  "pods on the node cannot reach it until an endpoint is back",
		})
	}
}
