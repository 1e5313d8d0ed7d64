package guard

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// EvictionIndex is an Index that finds the Services of one pod.
type EvictionIndex interface {
	Index
	// ServicesOf lists, sorted by key, the Services of policy Local of a pod: those whose slices name it, and those of its
	// namespace that select its labels while no slice names it yet.
	ServicesOf(pod types.UID, key Key, labels map[string]string) iter.Seq[*ServiceFacts]
}

// Eviction is one eviction that is asked for, with what was read live about it.
type Eviction struct {
	Pod    PodFacts
	Node   *NodeFacts             // nil when the pod's node does not exist
	Others map[types.UID]PodFacts // of Company, by UID; those that are gone or could not be read are absent
}

// EvictionReason says why an eviction may or may not go on.
type EvictionReason string

// Reasons to allow. With several Services the one of the last one stands.
const (
	PodPasses     EvictionReason = "PodPasses"     // terminating, finished or not bound: no rule of budgets holds for it either
	NodeGone      EvictionReason = "NodeGone"      // its node does not exist
	NotAnEndpoint EvictionReason = "NotAnEndpoint" // no usable endpoint of a Service with externalTrafficPolicy Local
	NotInRotation EvictionReason = "NotInRotation" // no balancer sends to its node
	Released      EvictionReason = "Released"      // the claim on the node says that the pods of the Service may go
	KeeperStays   EvictionReason = "KeeperStays"   // another pod of the node is kept and serves all that this one serves
)

// Reasons to refuse.
const (
	NodeLeaving  EvictionReason = "NodeLeaving"  // the node is being withdrawn, or is about to be: later
	NotProven    EvictionReason = "NotProven"    // the run that withdrew the node ended without a proof
	LastAnywhere EvictionReason = "LastEndpoint" // no endpoint is left on any node that stays
	OnlyEndpoint EvictionReason = "OnlyEndpoint" // the only one on its node, which is in rotation
	Keeper       EvictionReason = "Keeper"       // the one that is kept on its node
	NoKeeper     EvictionReason = "NoKeeper"     // none is kept on its node yet: later
)

// EvictionVerdict is the answer of the rules, whatever the mode of the gate.
type EvictionVerdict struct {
	Allow  bool
	Reason EvictionReason
	Blocks []EvictionBlock // one for each Service that stands against it, sorted by key; empty when it is allowed
}

// EvictionBlock is one Service that stands against an eviction, with the parts of its message.
type EvictionBlock struct {
	Service  Key
	Gate     string // annotation safedrain.dev/gate of the Service
	Reason   EvictionReason
	Node     string
	Cordoned bool
	Leaving  Leaving
	Rotation InRotation
	Hook     string          // the one that fronts the Service, "" when none is known
	Claimed  *ClaimedService // what the claim on the node says of the Service; nil when it says nothing
}

// JudgeEviction decides whether a pod may be evicted so that its node, while it is in rotation, keeps a usable endpoint of
// each of the pod's Services. It looks at every Service, so that the modes of the gate can be applied to each.
func JudgeEviction(e Eviction, ix EvictionIndex) EvictionVerdict {
	v := EvictionVerdict{Allow: true, Reason: NotAnEndpoint}
	switch why := e.Pod.passes(); {
	case why != "":
		v.Reason = why
		return v
	case e.Node == nil:
		v.Reason = NodeGone
		return v
	}
	for j := range e.each(ix) {
		reason, allow, certain := j.apart()
		if !certain {
			reason, allow = j.kept()
		}
		if allow {
			v.Reason = reason
			continue
		}
		v.Blocks = append(v.Blocks, j.block(reason))
	}
	if len(v.Blocks) > 0 {
		v.Allow, v.Reason = false, v.Blocks[0].Reason
	}
	return v
}

// Serves reports whether a pod is, or is about to be, a usable endpoint of a Service with externalTrafficPolicy Local: only
// then does anything else decide about its eviction.
func Serves(pod PodFacts, ix EvictionIndex) bool {
	e := Eviction{Pod: pod}
	for range e.each(ix) {
		return true
	}
	return false
}

// Company lists, sorted, the pods that the eviction's verdict rests on, to be read live into Others: those that serve, on
// its node, one of the pod's Services that is neither out of rotation there nor withdrawn.
func Company(e Eviction, ix EvictionIndex) []Key {
	seen := map[Key]bool{}
	if e.Pod.passes() != "" || e.Node == nil {
		return nil
	}
	for j := range e.each(ix) {
		if _, _, certain := j.apart(); certain {
			continue
		}
		for _, p := range j.ports {
			for i := range p.Endpoints {
				if o := &p.Endpoints[i]; j.beside(o) && o.PodKey.Name != "" {
					seen[o.PodKey] = true
				}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), Key.Compare)
}

// evictionJudgement is the work on one Service of the pod.
type evictionJudgement struct {
	*Eviction
	svc   *ServiceFacts
	ix    Index
	ports []*Port // those that the pod serves, or is about to
}

// each lists the Services that the pod serves and that are reached from outside.
func (e *Eviction) each(ix EvictionIndex) iter.Seq[*evictionJudgement] {
	return func(yield func(*evictionJudgement) bool) {
		for svc := range ix.ServicesOf(e.Pod.UID, e.Pod.Key, e.Pod.Labels) {
			if !svc.External || !e.Pod.serves(svc) {
				continue
			}
			j := &evictionJudgement{Eviction: e, svc: svc, ix: ix, ports: servedBy(&e.Pod, svc)}
			if len(j.ports) > 0 && !yield(j) {
				return
			}
		}
	}
}

// apart decides what can be decided without the other pods of the node: certain is false where it cannot. What a claim says
// of a Service comes before its rotation: objects show what is meant to be out, and only a proof shows what is. A Service
// that the claim does not name is not withdrawn, so that its keeper serves on.
func (j *evictionJudgement) apart() (reason EvictionReason, allow, certain bool) {
	claim := j.Node.Claim
	if s := j.claimed(); s != nil && claim.inForce(j.Node) {
		switch {
		case s.Released:
			return Released, true, true
		case claim.Ended:
			return j.unlessLast(NotProven), false, true
		}
		return j.unlessLast(NodeLeaving), false, true
	}
	switch {
	case j.inRotation() == No:
		return NotInRotation, true, true
	case claim == nil && j.Node.Leaving != Stays:
		return j.unlessLast(NodeLeaving), false, true
	}
	return "", false, false
}

// Phases of a claim: what its Services have to leave is noted from withdrawn on; closing is one that is being undone, with its
// node on the way back into rotation.
const (
	phaseWithdrawn = "withdrawn"
	phaseProven    = "proven"
	phaseClosing   = "closing"
)

// inForce reports whether what a claim says of its Services still holds: it is not being undone, and nobody took back what
// it set.
func (c *Claim) inForce(n *NodeFacts) bool {
	if c == nil || c.Phase == phaseClosing || !n.Cordoned {
		return false
	}
	return !c.Labelled || n.Excluded != nil && *n.Excluded == "true"
}

// claimed is what the claim on the node says of the Service, nil when it does not name it.
func (j *evictionJudgement) claimed() *ClaimedService {
	if j.Node.Claim == nil {
		return nil
	}
	s, ok := j.Node.Claim.Services[j.svc.Key]
	if !ok {
		return nil
	}
	return &s
}

// unlessLast is the reason of a refusal that waiting mends, unless the node cannot be withdrawn at all.
func (j *evictionJudgement) unlessLast(reason EvictionReason) EvictionReason {
	if j.elsewhere() {
		return reason
	}
	return LastAnywhere
}

// inRotation is the seat of the node, Unknown where a No may not be trusted.
func (j *evictionJudgement) inRotation() InRotation {
	r := &j.svc.Rotation
	if r.Nobody || j.Node.Virtual {
		return No
	}
	seat := r.Seat(j.Node.Name)
	if seat.In == No && j.doubtful(seat) {
		return Unknown
	}
	return seat.In
}

// doubtful reports whether a node that is said to be out of rotation may be in it: it enters when the others leave, so that
// the last endpoint counts wherever it is; and a rotation that follows endpoints is ahead of slices that lag, or that do not
// show the pod because it is held.
func (j *evictionJudgement) doubtful(seat Seat) bool {
	if !seat.Eligible {
		return j.barredOfLate()
	}
	r := &j.svc.Rotation
	return j.Node.Leaving == Stays && !j.elsewhere() || (r.Follows || r.HealthCheck != nil) && !j.listedReady()
}

// GateHolder is who holds the claims of the gate.
const GateHolder = "safedrain-gate"

// barredOfLate reports whether a node that its balancer must not send to may still be sent to: whoever empties it has barred
// it with the same stroke, as by a taint, and nothing has seen that it is out yet; or it is on its way back, or was a moment ago.
func (j *evictionJudgement) barredOfLate() bool {
	n, claim := j.Node, j.Node.Claim
	if claim != nil && claim.Phase == phaseClosing {
		return true
	}
	if known, ok := j.ix.Node(n.Name); ok && known.Excluded != nil && n.Excluded == nil {
		return true
	}
	switch n.Leaving {
	case LeavingScaleDown, LeavingDisrupted, LeavingDeleted:
	default:
		return false
	}
	r := &j.svc.Rotation
	begins := claim != nil && claim.Holder == GateHolder && claim.Phase != phaseWithdrawn && claim.Phase != phaseProven
	return r.Hook != "" && !r.Declared && (claim == nil || begins)
}

// listedReady reports whether slices show the pod as Ready on its node.
func (j *evictionJudgement) listedReady() bool {
	return slices.ContainsFunc(j.ports, func(p *Port) bool {
		return slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Pod == j.Pod.UID && e.stays() })
	})
}

// kept applies the rule of the keepers: of the pods of a Service on a node one is kept, and the others may go while it
// serves.
func (j *evictionJudgement) kept() (EvictionReason, bool) {
	switch {
	case !j.company():
		return j.unlessLast(OnlyEndpoint), false
	case slices.Contains(j.Pod.Keeper, j.svc.Key.Name):
		return Keeper, false
	case j.covered():
		return KeeperStays, true
	}
	return NoKeeper, false
}

// company reports whether each port that the pod serves has another usable endpoint on the node.
func (j *evictionJudgement) company() bool {
	return j.eachPort(func(PodFacts) bool { return true })
}

// covered reports whether each port that the pod serves has a keeper on the node that may be relied on.
func (j *evictionJudgement) covered() bool {
	return j.eachPort(func(o PodFacts) bool { return slices.Contains(o.Relied, j.svc.Key.Name) })
}

// eachPort reports whether each port that the pod serves has another endpoint on the node whose pod, read live, serves too
// and is one that counts.
func (j *evictionJudgement) eachPort(counts func(PodFacts) bool) bool {
	for _, p := range j.ports {
		if !slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool {
			o, read := j.Others[e.Pod]
			return read && j.beside(&e) && o.Node == j.Node.Name && o.serves(j.svc) && counts(o) && !p.doubted(e.Pod)
		}) {
			return false
		}
	}
	return true
}

// beside reports whether an endpoint is another one on the node of the pod, and one that stays.
func (j *evictionJudgement) beside(e *Endpoint) bool {
	return e.Node == j.Node.Name && e.Pod != "" && e.Pod != j.Pod.UID && e.stays()
}

// doubted reports whether some copy of a pod's endpoints says that it does not stay.
func (p *Port) doubted(pod types.UID) bool {
	return slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Pod == pod && !e.stays() })
}

// elsewhere reports whether the Service has an endpoint that stays on another node that stays and that its balancer sends to
// or could.
func (j *evictionJudgement) elsewhere() bool {
	for i := range j.svc.Ports {
		for k := range j.svc.Ports[i].Endpoints {
			e := &j.svc.Ports[i].Endpoints[k]
			if e.Node == "" || e.Node == j.Node.Name || !e.stays() {
				continue
			}
			n, ok := j.ix.Node(e.Node)
			if ok && n.Ready && n.Leaving == Stays && n.eligible(j.svc.Rotation.Seat(e.Node)) {
				return true
			}
		}
	}
	return false
}

// block is the refusal with the parts of its message.
func (j *evictionJudgement) block(reason EvictionReason) EvictionBlock {
	return EvictionBlock{
		Service: j.svc.Key, Gate: j.svc.Gate, Reason: reason, Node: j.Node.Name,
		Cordoned: j.Node.Cordoned, Leaving: j.Node.Leaving, Rotation: j.svc.Rotation.Seat(j.Node.Name).In,
		Hook: cmp.Or(j.hook(), j.svc.Rotation.Hook), Claimed: j.claimed(),
	}
}

// hook is the one that the claim names for the Service.
func (j *evictionJudgement) hook() string {
	if s := j.claimed(); s != nil && s.Hook != "none" {
		return s.Hook
	}
	return ""
}

// servedBy lists the ports of a Service whose slices name the pod; every port in its families while none does.
func servedBy(pod *PodFacts, svc *ServiceFacts) []*Port {
	var named, all []*Port
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Pod == pod.UID }) {
			named = append(named, p)
		}
		if slices.Contains(pod.Families, p.Family) {
			all = append(all, p)
		}
	}
	if len(named) > 0 {
		return named
	}
	return all
}
