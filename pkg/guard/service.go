package guard

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Loss is what goes: the nodes of a request and the pods that are evicted from them.
type Loss struct {
	Nodes   map[string]bool
	Run     string             // identity of the run at hand: its own claims are not another's
	StayUp  bool               // the nodes go on running, so only evicted endpoints are lost
	Evicted map[types.UID]bool // pods that go before the node does, terminating ones included
	Flags   *Flags
	Surges  []Surge // replicas that are started before anything goes
}

// judgement is the work on one Service; it holds what the steps of JudgeService have in common.
type judgement struct {
	svc   *ServiceFacts
	ix    Index
	loss  *Loss
	cover Coverage
	lost  []string // nodes of the request that lose their last usable endpoint of some port, sorted
	plan  ServicePlan
}

// JudgeService judges one Service of policy Local against a loss. The plan's Nodes are empty when nothing changes and
// nothing is broken already.
func JudgeService(svc *ServiceFacts, ix Index, loss *Loss) ServicePlan {
	return judge(svc, ix, loss).plan
}

func judge(svc *ServiceFacts, ix Index, loss *Loss) *judgement {
	j := newJudgement(svc, ix, loss)
	j.rows()
	j.count()
	j.locality()
	if svc.External {
		j.external()
	}
	if svc.Internal {
		j.internal()
	}
	j.goesWithNode()
	sortFindings(j.plan.Findings)
	return j
}

// newJudgement is a judgement of a Service of which nothing is said yet.
func newJudgement(svc *ServiceFacts, ix Index, loss *Loss) *judgement {
	return &judgement{svc: svc, ix: ix, loss: loss, cover: Cover(svc), plan: ServicePlan{
		Namespace: svc.Key.Namespace, Name: svc.Key.Name, Policy: svc.policy(), Verdict: Safe,
		Balancer: svc.Rotation.balancer(), Nodes: []NodeRow{}, Findings: []Finding{}, NodePorts: svc.NodePorts,
	}}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (s *ServiceFacts) policy() Policy {
	switch {
	case s.External && s.Internal:
		return PolicyBoth
	case s.Internal:
		return PolicyInternal
	}
	return PolicyExternal
}

func (r *Rotation) balancer() Balancer {
	b := Balancer{Hook: r.Hook, Removal: r.Removal, Evidence: r.Evidence, Moves: r.Moves, Settle: r.Settle, Timeout: r.Timeout}
	if b.Hook == "" {
		b.Hook = "none"
	}
	if b.Removal == "" {
		b.Removal = RemovalNone
	}
	return b
}

// gone reports whether an endpoint ends with the loss.
func (j *judgement) gone(e *Endpoint) bool {
	if !j.loss.Nodes[e.Node] {
		return false
	}
	return !j.loss.StayUp || j.loss.Evicted[e.Pod]
}

// after is what a node would have of a port: what is there now less what is gone.
func (j *judgement) after(l localEndpoints) State {
	gone := func(e Endpoint) bool { return j.gone(&e) }
	return localEndpoints{
		ready:       slices.DeleteFunc(slices.Clone(l.ready), gone),
		terminating: slices.DeleteFunc(slices.Clone(l.terminating), gone),
	}.state()
}

// rows fills one row for each node of the loss that has something of the Service, and notes which lose it.
func (j *judgement) rows() {
	for _, node := range sortedKeys(j.loss.Nodes) {
		row, changes := j.row(node)
		if row.Before == StateEmpty {
			continue
		}
		if changes {
			j.lost = append(j.lost, node)
		}
		j.plan.Nodes = append(j.plan.Nodes, row)
	}
}

// row is the row of a node of the loss: the best state of its ports before, the worst after.
func (j *judgement) row(node string) (NodeRow, bool) {
	row := NodeRow{Name: node, Before: StateEmpty, After: StateServing}
	changed := map[*Port]bool{}
	for i := range j.cover.ports {
		pc := &j.cover.ports[i]
		before := pc.local[node].state()
		after := j.after(pc.local[node])
		if stateRank[before] > stateRank[row.Before] {
			row.Before = before
		}
		if before != StateEmpty && stateRank[after] < stateRank[row.After] {
			row.After = after
		}
		if before != StateEmpty && after == StateEmpty {
			changed[pc.port] = true
		}
	}
	if row.Before == StateEmpty {
		row.After = StateEmpty
		return row, false
	}
	if j.svc.External {
		row.InRotation = j.seat(node).In
	}
	if len(changed) > 0 && len(changed) < len(j.cover.ports) {
		row.Ports, row.Families = titles(changed), familiesOf(changed, j.cover.ports)
	}
	return row, len(changed) > 0
}

func titles(ports map[*Port]bool) []string {
	var out []string
	for p := range ports {
		out = append(out, p.title())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// familiesOf lists the families of some ports, unless they are all the families that the Service has.
func familiesOf(some map[*Port]bool, all []portCoverage) []string {
	have, want := map[string]bool{}, map[string]bool{}
	for i := range all {
		want[string(all[i].port.Family)] = true
	}
	for p := range some {
		have[string(p.Family)] = true
	}
	if len(have) == len(want) {
		return nil
	}
	return sortedKeys(have)
}

// seat is a node's place in the rotation; nobody sends where safedrain.dev/nodes says none.
func (j *judgement) seat(node string) Seat {
	if j.svc.Rotation.Nobody {
		return Seat{In: No}
	}
	seat := j.svc.Rotation.Seat(node)
	if seat.In == No && j.svc.Rotation.HealthCheck != nil && j.holding(node) {
		return Seat{In: Yes, Eligible: true, Why: "its pods are held: the balancer may not have noticed yet"}
	}
	return seat
}

// stays reports whether a node goes on being one that can serve from outside: there, Ready and not leaving.
func (j *judgement) stays(node string) bool {
	n, ok := j.ix.Node(node)
	return ok && n.Ready && !j.loss.Nodes[node] && !n.leaves(j.loss.Run)
}

// leaves reports whether a node is leaving, apart from the request at hand; a claim of the run itself does not count.
func (n *NodeFacts) leaves(run string) bool {
	if n.Leaving == LeavingClaimed && n.Claim != nil && run != "" && n.Claim.Run == run {
		return false
	}
	return n.Leaving != Stays
}

// eligible reports whether the balancer sends to a node or could: the hook's word, and where the rotation is unknown
// the nodes that people point balancers at.
func (j *judgement) eligible(node string) bool {
	n, ok := j.ix.Node(node)
	return ok && n.eligible(j.seat(node))
}

// eligible reports whether a balancer in whose rotation the node has that seat sends to it or could.
func (n *NodeFacts) eligible(s Seat) bool {
	switch {
	case n.Virtual:
		return false
	case s.In == Unknown:
		return s.Eligible && n.candidate()
	}
	return s.Eligible || s.In == Yes
}

// candidate reports whether a node could be in the rotation of a balancer that nothing is known of.
func (n *NodeFacts) candidate() bool {
	return n.Ready && n.Excluded == nil && !n.ControlPlane && !n.Virtual
}

// count fills the endpoints before and after, on nodes that are in rotation or could enter it. For a Service that only
// clients inside use, every node counts.
func (j *judgement) count() {
	var before, after []Endpoint
	for i := range j.cover.ports {
		pc := &j.cover.ports[i]
		for node, l := range pc.local {
			if j.svc.External && !j.eligible(node) {
				continue
			}
			before = append(before, l.usable()...)
		}
		for k := range pc.left {
			e := &pc.left[k]
			if j.remains(e) && (!j.svc.External || j.eligible(e.Node)) {
				after = append(after, *e)
			}
		}
	}
	j.plan.Endpoints = Count{Before: distinct(before), After: distinct(after)}
	if j.comes() != nil {
		j.plan.Endpoints.After++
	}
}

// remains reports whether an endpoint that stays by its slice is on a node that stays, and, where its pod is at hand,
// is neither terminating nor finished in truth.
func (j *judgement) remains(e *Endpoint) bool {
	if j.loss.Nodes[e.Node] {
		n, ok := j.ix.Node(e.Node)
		return j.loss.StayUp && !j.gone(e) && ok && n.Ready && j.podLives(e)
	}
	return j.stays(e.Node) && j.podLives(e)
}

func (j *judgement) podLives(e *Endpoint) bool {
	pod, ok := j.ix.Pod(e.Pod)
	return !ok || (!terminating(pod) && !Finished(pod))
}

func (j *judgement) add(f Finding) { j.plan.Findings = append(j.plan.Findings, f) }

func (j *judgement) worsen(v Verdict) { j.plan.Verdict = j.plan.Verdict.Worse(v) }
