package guard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// external judges what clients outside would lose: what is left, and whether a node that loses its endpoint can be
// taken out of rotation first.
func (j *judgement) external() {
	j.blackholes()
	r := &j.svc.Rotation
	if len(j.lost) == 0 || r.Nobody {
		return
	}
	blocked := j.whatIsLeft()
	var out []string
	for _, n := range j.lost {
		if j.seat(n).In != No {
			out = append(out, n)
		}
	}
	if len(out) > 0 {
		j.add(Finding{
			Code: LosesLocalEndpoint, Severity: Info, Nodes: out, Ports: j.lostPorts(),
			Message: "loses its last local endpoint, and is to leave rotation first",
		})
	}
	switch {
	case r.Unsupported != "":
		j.block(UnsupportedBalancer, r.Unsupported, "use another balancer for this Service, or policy Cluster")
	case len(r.Conflict) > 0:
		j.block(HookConflict, "claimed by two hooks: "+strings.Join(r.Conflict, ", "),
			"annotate the Service with safedrain.dev/hook to choose one")
	case blocked || len(out) == 0:
	default:
		j.proof(out)
	}
}

func (j *judgement) lostPorts() []string {
	for i := range j.plan.Nodes {
		if len(j.plan.Nodes[i].Ports) > 0 {
			return j.plan.Nodes[i].Ports
		}
	}
	return nil
}

func (j *judgement) block(code Code, message, advice string) {
	name := "service/" + j.svc.Key.String()
	forced := j.loss.Flags.forces(name)
	j.add(Finding{
		Code: code, Severity: Block, Nodes: j.lost, Message: message, Advice: advice,
		Accept: "--force-unsafe=" + name, Accepted: forced,
	})
	j.worsen(Unsafe)
}

// whatIsLeft blocks when a port that the loss takes away keeps no endpoint anywhere, or none where this balancer sends.
func (j *judgement) whatIsLeft() bool {
	none, unreachable := map[*Port]bool{}, map[*Port]bool{}
	for i := range j.cover.ports {
		pc := &j.cover.ports[i]
		if !j.losesPort(pc) {
			continue
		}
		left := map[string]bool{}
		for k := range pc.left {
			if j.remains(&pc.left[k]) {
				left[pc.left[k].Node] = true
			}
		}
		switch {
		case len(left) == 0:
			none[pc.port] = true
		case !j.reachable(left):
			unreachable[pc.port] = true
		}
	}
	if len(none) > 0 {
		j.block(LastEndpoint, j.lastMessage(none), j.lastAdvice())
	}
	if len(unreachable) > 0 {
		j.block(NoEligibleNode, "endpoints are left, but only where this balancer does not send"+j.whyNot(),
			"let another node with an endpoint into the balancer, or add a replica on one that is in it")
	}
	return len(none)+len(unreachable) > 0
}

func (j *judgement) losesPort(pc *portCoverage) bool {
	for _, n := range j.lost {
		if pc.local[n].state() != StateEmpty && j.after(pc.local[n]) == StateEmpty {
			return true
		}
	}
	return false
}

// reachable reports whether some node with an endpoint left is one that the balancer sends to or could, for this Service
// and for every other one that shares its address.
func (j *judgement) reachable(left map[string]bool) bool {
	for node := range left {
		if !j.eligible(node) {
			continue
		}
		suits := true
		for _, key := range j.svc.SharedWith {
			suits = suits && j.suitsShared(key, node)
		}
		if suits {
			return true
		}
	}
	return false
}

// suitsShared reports whether a node has, or will still have, an endpoint of another Service on the same address.
func (j *judgement) suitsShared(key Key, node string) bool {
	other, ok := j.ix.Service(key)
	if !ok || !other.External {
		return true
	}
	cover := Cover(other)
	if !cover.Has() {
		return true
	}
	for i := range cover.ports {
		if !slices.ContainsFunc(cover.ports[i].left, func(e Endpoint) bool { return e.Node == node && j.remains(&e) }) {
			return false
		}
	}
	return true
}

func (j *judgement) lastMessage(ports map[*Port]bool) string {
	where := strings.Join(j.lost, ", ")
	message := "the other endpoints terminate, or are on nodes that are not Ready or are leaving" + j.leavers()
	switch n := j.endpointsOn(j.lost); {
	case len(ports) < len(j.cover.ports):
		message = fmt.Sprintf("all endpoints of port %s are on %s", strings.Join(titles(ports), ", "), where)
	case n < j.plan.Endpoints.Before:
	case n == 1:
		message = "the only endpoint is on " + where
	default:
		message = fmt.Sprintf("all %d endpoints are on %s", n, where)
	}
	if pin := j.pin(); pin != "" {
		message += "; its pods are pinned (" + pin + "), so replacements can run nowhere else"
	}
	return message
}

// leavers names the leaving nodes that have endpoints of the Service, and who drains them.
func (j *judgement) leavers() string {
	names := map[string]string{}
	for i := range j.cover.ports {
		for name := range j.cover.ports[i].local {
			n, ok := j.ix.Node(name)
			if !ok || !n.leaves(j.loss.Run) || j.loss.Nodes[name] {
				continue
			}
			names[name] = name
			if n.Claim != nil && n.Claim.Holder != "" {
				names[name] = fmt.Sprintf("%s (run %s of %s)", name, n.Claim.Run, n.Claim.Holder)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	all := slices.Sorted(maps.Values(names))
	more := ""
	if len(all) > 3 {
		more = fmt.Sprintf(" +%d", len(all)-3)
	}
	return ": " + strings.Join(all[:min(len(all), 3)], ", ") + more
}

func (j *judgement) lastAdvice() string {
	if j.pin() != "" {
		return "drop the pin and spread the pods: safedrain audit " + j.svc.Key.String() + " shows how"
	}
	return "add a replica on a node that stays, wait until it is Ready, and try again"
}

// endpointsOn counts the usable endpoints on some nodes.
func (j *judgement) endpointsOn(nodes []string) int {
	var on []Endpoint
	for i := range j.cover.ports {
		for _, n := range nodes {
			on = append(on, j.cover.ports[i].local[n].usable()...)
		}
	}
	return distinct(on)
}

// pin returns what ties the lost pods to nodes of the loss; "" when they could run elsewhere.
func (j *judgement) pin() string {
	for _, node := range j.lost {
		for pod := range j.ix.Pods(node) {
			if !j.isEndpoint(pod.UID) {
				continue
			}
			if pin := pinnedTo(&pod.Spec, j.ix, j.loss.Nodes); pin != "" {
				return pin
			}
		}
	}
	return ""
}

func (j *judgement) whyNot() string {
	seen := map[string]bool{}
	for i := range j.cover.ports {
		for k := range j.cover.ports[i].left {
			e := &j.cover.ports[i].left[k]
			if !j.remains(e) || j.eligible(e.Node) {
				continue
			}
			why := j.seat(e.Node).Why
			if n, ok := j.ix.Node(e.Node); ok && n.Virtual {
				why = "a virtual node"
			}
			if why == "" {
				why = "not selected"
			}
			seen[e.Node+": "+why] = true
		}
	}
	reasons := sortedKeys(seen)
	if len(reasons) == 0 {
		return ""
	}
	if len(reasons) > 3 {
		reasons = append(reasons[:3], fmt.Sprintf("+%d", len(reasons)-3))
	}
	return " (" + strings.Join(reasons, "; ") + ")"
}

// proof decides whether the nodes can be taken out of rotation so that somebody sees it.
func (j *judgement) proof(out []string) {
	r := &j.svc.Rotation
	switch {
	case r.Broken != "":
		j.unproven(HookUnavailable, out, r.Hook+" cannot work: "+r.Broken, "safedrain hooks "+j.svc.Key.String()+" says what is missing", true)
	case r.Provable && r.Removal != RemovalNone:
		j.worsen(Withdraw)
	case r.HealthCheck != nil && j.healthCheckRemoves(out):
		j.plan.Balancer.Removal = RemovalHealthCheck
		j.worsen(Withdraw)
	default:
		j.rotationUnproven(out)
	}
}

// healthCheckRemoves reports whether on every node some pod provably serves for longer than the balancer's check needs.
func (j *judgement) healthCheckRemoves(out []string) bool {
	r := &j.svc.Rotation
	if j.svc.PublishNotReady {
		j.add(Finding{
			Code: GraceIneffective, Severity: Warn, Nodes: out,
			Message: "publishNotReadyAddresses keeps the health check at 200 until the pod is gone, so its grace cannot help",
			Advice:  "drop publishNotReadyAddresses, or front the Service with a hook",
		})
		return false
	}
	need := r.HealthCheck.removalTime()
	var short []string
	var gap time.Duration
	for _, n := range out {
		if serves := j.servingTime(n); serves < need {
			short = append(short, n)
			gap = max(gap, need-serves)
		}
	}
	if len(short) == 0 {
		return true
	}
	j.add(Finding{
		Code: GraceTooShort, Severity: Warn, Nodes: short,
		Message: fmt.Sprintf("the pods may stop serving %s before the health check removes the node: it needs %s (%s)",
			gap, need, r.HealthCheck),
		Advice: fmt.Sprintf("a preStop sleep of %s with a longer grace, or a hook", need),
	})
	return false
}

// servingTime is how long some pod of the Service on a node provably serves after the eviction. An endpoint that is not
// evicted keeps the check at 200 until the node goes, so it counts as nothing.
func (j *judgement) servingTime(node string) time.Duration {
	var longest time.Duration
	for pod := range j.ix.Pods(node) {
		if !j.isEndpoint(pod.UID) {
			continue
		}
		if !j.loss.Evicted[pod.UID] {
			return 0
		}
		longest = max(longest, servesAfterEviction(pod, graceOf(pod, j.loss.Flags.GracePeriod)))
	}
	return longest
}

func (j *judgement) rotationUnproven(out []string) {
	r := &j.svc.Rotation
	message := "nothing can prove that the node left rotation"
	advice := "say who sends: annotation safedrain.dev/hook, or safedrain.dev/nodes=none if nobody outside does"
	switch {
	case r.Hook == "" && len(j.svc.NodePorts) > 0 && j.svc.Type == "NodePort":
		message = fmt.Sprintf("NodePort %s, no balancer known, clients may use the node", ints(j.svc.NodePorts))
	case r.Hook == "":
		message = "no balancer known"
		if r.Reason != "" {
			message += ": " + r.Reason
		}
	case r.Removal == RemovalLabel:
		message = r.Hook + ": the label works, nothing confirms it"
		advice = "annotate the Service with safedrain.dev/settle=<time> to accept a time in place of a proof"
	}
	j.unproven(RotationUnproven, out, message, advice, false)
}

func (j *judgement) unproven(code Code, nodes []string, message, advice string, broken bool) {
	f := Finding{
		Code: code, Severity: SeverityUnproven, Nodes: nodes, Message: message, Advice: advice,
		Accept: "--accept-unproven=" + j.svc.Key.String(),
	}
	r := &j.svc.Rotation
	if !broken && r.Settle != nil && (r.Removal == RemovalLabel || r.Removal == RemovalHook) {
		f.Accepted = true
		f.Message += fmt.Sprintf("; safedrain.dev/settle accepts %s for it", *r.Settle)
		j.add(f)
		j.worsen(Withdraw)
		return
	}
	f.Accepted = j.loss.Flags.acceptsUnproven(j.svc.Key, broken)
	j.add(f)
	j.worsen(Unproven)
}

func ints(ns []int32) string {
	out := make([]string, len(ns))
	for i, n := range ns {
		out[i] = fmt.Sprint(n)
	}
	return strings.Join(out, ", ")
}
