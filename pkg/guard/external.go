package guard

import (
	"cmp"
	"fmt"
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
	j.podTargets()
	j.zones()
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
		j.block(HookConflict, conflictText(r), "annotate the Service with safedrain.dev/hook to choose one")
	case blocked || len(out) == 0:
	default:
		j.proof(out)
	}
}

// conflictText names the hooks that claim a Service, each with its reason where that is known.
func conflictText(r *Rotation) string {
	return "claimed by two hooks: " + cmp.Or(r.Reason, strings.Join(r.Conflict, ", "))
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

// proof decides whether the nodes can be taken out of rotation so that somebody sees it.
func (j *judgement) proof(out []string) {
	r := &j.svc.Rotation
	switch {
	case r.Broken != "":
		j.unproven(HookUnavailable, out, r.Hook+" cannot work: "+r.Broken, "safedrain hooks "+j.svc.Key.String()+" says what is missing", true)
	case r.Alone != "" && j.comes() == nil: // a replica that is started first is for the balancer to see: the drain judges anew then
		j.unproven(HookUnavailable, out, r.Hook+": "+r.Alone,
			"wait until another one is healthy there: safedrain hooks "+j.svc.Key.String()+" shows what it says of each node", true)
	case r.Provable && r.Removal != RemovalNone:
		if j.svc.Hold || slices.Contains(j.loss.Flags.Hold, j.svc.Key.String()) {
			j.limited(out, "is not held: "+r.Hook+" withdraws the node and proves it", "")
		}
		j.worsen(Withdraw)
	case r.HealthCheck != nil && j.healthCheckRemoves(out):
		j.plan.Balancer.Removal = RemovalHealthCheck
		j.worsen(Withdraw)
	case j.hold(out):
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
		Advice: fmt.Sprintf("a preStop sleep of %s with a longer grace%s", need, j.otherThanGrace(short)),
	})
	return false
}

// otherThanGrace is what helps a Service whose pods end before the check has failed: a hold, unless something rules it out.
func (j *judgement) otherThanGrace(nodes []string) string {
	if len(j.againstHold(nodes)) > 0 {
		return ", or a hook"
	}
	return ", a hook, or --hold=" + j.svc.Key.String()
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
	case r.NoProof != "":
		message = r.Hook + ": " + r.NoProof
		if r.Removal == RemovalLabel || r.Removal == RemovalHook {
			advice = "annotate the Service with safedrain.dev/settle=<time> to accept a time in place of a proof"
		} else {
			advice = "accept it for this run, or give it a balancer that can take a node out"
		}
	case r.Removal == RemovalLabel:
		message = r.Hook + ": the label works, nothing confirms it"
		advice = "annotate the Service with safedrain.dev/settle=<time> to accept a time in place of a proof"
	case r.HealthCheck != nil:
		message += ": only the balancer's health check takes it out, and the pods end before it has"
		advice = "pods that outlive the check" + j.otherThanGrace(out)
		if j.svc.PublishNotReady {
			message = "nothing can prove that the node left rotation: only the balancer's health check takes it out, and it fails too late"
			advice = "drop publishNotReadyAddresses, or front the Service with a hook"
		}
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
		f.Message += fmt.Sprintf("; %s accepts %s for it", cmp.Or(r.SettleBy, "safedrain.dev/settle"), *r.Settle)
		j.add(f)
		j.worsen(Withdraw)
		return
	}
	f.Accepted = j.loss.Flags.AcceptsUnproven(j.svc.Key, broken) || j.loss.Flags.Deadline
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
