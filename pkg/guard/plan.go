package guard

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Plan judges the drain of some nodes together: every pod on them, every Local Service that changes or is broken
// already, and every Service of policy Cluster whose balancer uses one of the nodes as a way in. Everything that stands
// against the drain is named at once.
func Plan(ix Index, req Request) DrainPlan {
	slices.Sort(req.Nodes)
	plan := DrainPlan{
		APIVersion: APIVersion, Kind: KindDrainPlan, Nodes: req.Nodes, Verdict: Safe,
		Accepted: []string{}, Services: []ServicePlan{}, Withdraw: []Entry{}, Pods: []PodPlan{}, Findings: []Finding{},
		Surges: req.Surges,
	}
	pods, findings := judgePods(ix, &req)
	plan.Pods = append(plan.Pods, pods...)
	plan.Findings = append(plan.Findings, findings...)
	plan.Findings = append(plan.Findings, judgeBudgets(ix, pods, &req)...)
	plan.Findings = append(plan.Findings, judgeNodes(ix, &req)...)
	sortFindings(plan.Findings)

	loss := lossOf(&req, pods)
	judgements := judgeServices(ix, loss)
	order(plan.Pods, judgements)
	replace(ix, &req, plan.Pods, judgements)
	for _, j := range judgements {
		plan.Services = append(plan.Services, j.plan)
	}
	plan.Withdraw = append(plan.Withdraw, entries(ix, loss)...)
	plan.conclude()
	return plan
}

// lossOf is what goes with a request: the nodes, and the pods that are evicted or terminating already.
func lossOf(req *Request, pods []PodPlan) *Loss {
	loss := &Loss{
		Nodes: map[string]bool{}, Run: req.Run, StayUp: req.StayUp, Evicted: map[types.UID]bool{}, Flags: &req.Flags, Surges: req.Surges,
	}
	for _, n := range req.Nodes {
		loss.Nodes[n] = true
	}
	for i := range pods {
		if pods[i].Action != ActionSkip || pods[i].Waiting {
			loss.Evicted[pods[i].UID] = true
		}
	}
	return loss
}

// judgeServices judges the Local Services with an endpoint on a node of the loss, or with one that names no node.
func judgeServices(ix Index, loss *Loss) []*judgement {
	seen := map[Key]bool{}
	var out []*judgement
	for _, node := range append(sortedKeys(loss.Nodes), "") {
		for svc := range ix.ServicesOn(node) {
			if seen[svc.Key] || !svc.Local() {
				continue
			}
			seen[svc.Key] = true
			if j := judge(svc, ix, loss); len(j.plan.Nodes) > 0 || len(j.plan.Findings) > 0 {
				out = append(out, j)
			}
		}
	}
	slices.SortFunc(out, func(a, b *judgement) int { return a.svc.Key.Compare(b.svc.Key) })
	return out
}

// order makes pods wait for the Services that they carry out of rotation: a usable endpoint of an affected Service goes
// only once the node has left its rotation; where the health check is the means of removal, once the check was seen to work.
func order(pods []PodPlan, judgements []*judgement) {
	for _, j := range judgements {
		if !j.affected() {
			continue
		}
		for i := range pods {
			p := &pods[i]
			if p.Action != ActionSkip && slices.Contains(j.lost, p.Node) && (j.isEndpoint(p.UID) || j.plan.Hold.Holds(p.UID)) {
				p.After = append(p.After, j.svc.Key.String())
			}
		}
	}
}

// affected reports whether something has to come before the evictions.
func (j *judgement) affected() bool { return j.svc.External && j.plan.Verdict != Safe }

// entries finds the Services that no endpoint decides about: those of policy Cluster, whose balancer enters the cluster
// through a node of the loss. They have to leave it before it is switched off.
func entries(ix Index, loss *Loss) []Entry {
	staying := 0
	for n := range ix.Nodes() {
		if n.Ready && !loss.Nodes[n.Name] && !n.leaves(loss.Run) && !n.Virtual {
			staying++
		}
	}
	var out []Entry
	if loss.StayUp {
		return nil
	}
	for svc := range ix.Services() {
		if svc.External || svc.Rotation.Hook == "" || svc.Rotation.Nobody {
			continue
		}
		e := Entry{
			Namespace: svc.Key.Namespace, Name: svc.Key.Name,
			Balancer: svc.Rotation.balancer(), Provable: svc.Rotation.Provable && svc.Rotation.Broken == "" && svc.Rotation.Alone == "",
		}
		for _, node := range sortedKeys(loss.Nodes) {
			if svc.Rotation.Seat(node).In != No {
				e.Nodes = append(e.Nodes, node)
			}
		}
		if len(e.Nodes) == 0 {
			continue
		}
		e.Left = entriesLeft(ix, svc, loss, staying)
		e.judge(loss.Flags)
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return a.Key().Compare(b.Key()) })
	return out
}

// entriesLeft counts the nodes that stay as a way in, in time of the seats that are named.
func entriesLeft(ix Index, svc *ServiceFacts, loss *Loss, staying int) int {
	named, eligible := 0, 0
	count := func(node string, seat Seat) {
		n, ok := ix.Node(node)
		if !ok || !n.Ready || n.Virtual || loss.Nodes[node] || n.leaves(loss.Run) {
			return
		}
		named++
		if seat.Eligible || seat.In == Yes {
			eligible++
		}
	}
	for node, seat := range svc.Rotation.Seats {
		count(node, seat)
	}
	for node, seat := range svc.Rotation.Shared {
		if _, own := svc.Rotation.Seats[node]; !own {
			count(node, seat)
		}
	}
	if svc.Rotation.Rest.Eligible {
		eligible += staying - named
	}
	return eligible
}

func (e *Entry) judge(flags *Flags) {
	if e.Left > 0 {
		return
	}
	name := "service/" + e.Key().String()
	e.Findings = append(e.Findings, Finding{
		Code: NoEligibleNode, Severity: Block, Nodes: e.Nodes,
		Message: "no other node is left as a way in for its balancer",
		Advice:  "let another node into the balancer first",
		Accept:  "--force-unsafe=" + name, Accepted: flags.forces(name),
	})
}

// judgeNodes says what is odd about the nodes themselves.
func judgeNodes(ix Index, req *Request) []Finding {
	var out []Finding
	for _, name := range req.Nodes {
		n, ok := ix.Node(name)
		if !ok {
			continue
		}
		if n.Unreachable {
			out = append(out, Finding{
				Code: NodeUnreachable, Severity: Warn, Nodes: []string{name},
				Message: "its kubelet is silent: nobody can confirm that its pods have ended",
				Advice:  "make sure that the machine is off before its volumes are used elsewhere",
			})
		}
		if n.leaves(req.Run) {
			message := string(n.Leaving)
			if n.Leaving == LeavingClaimed && n.Claim != nil && n.Claim.Holder != "" {
				message += " (" + n.Claim.Holder + ")"
			}
			out = append(out, Finding{Code: NodeAlreadyLeaving, Severity: Warn, Nodes: []string{name}, Message: message})
		}
	}
	return append(out, forgotten(ix, req)...)
}

// forgotten finds withdrawals that nobody took back: our claim on a node that takes pods again.
func forgotten(ix Index, req *Request) []Finding {
	var nodes []string
	for n := range ix.Nodes() {
		if n.Claim != nil && n.Claim.Phase != "" && !n.Cordoned && !slices.Contains(req.Nodes, n.Name) && n.Claim.Run != req.Run {
			nodes = append(nodes, n.Name)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	slices.Sort(nodes)
	return []Finding{{
		Code: ForgottenWithdrawal, Severity: Warn, Nodes: nodes,
		Message: "takes pods again, but is still marked as withdrawn by safedrain: capacity of its balancers is lost",
		Advice:  fmt.Sprintf("safedrain uncordon %s", nodes[0]),
	}}
}

// conclude sets the plan's verdict: the worst of all parts, after what was accepted. An entry that has to be withdrawn is
// work to do, no danger to a Local Service: only a finding of its own worsens the verdict.
func (p *DrainPlan) conclude() {
	for i := range p.Services {
		s := &p.Services[i]
		p.settle(s.Findings, "service/"+s.Key().String())
		if s.Verdict != Safe {
			p.Verdict = p.Verdict.Worse(Withdraw)
		}
	}
	for i := range p.Withdraw {
		p.settle(p.Withdraw[i].Findings, "service/"+p.Withdraw[i].Key().String())
	}
	p.settle(p.Findings, "")
	slices.Sort(p.Accepted)
	p.Accepted = slices.Compact(p.Accepted)
}

// weights are the severities that worsen a verdict, with the word under which an acceptance is listed.
var weights = map[Severity]struct {
	word    string
	verdict Verdict
}{Block: {"unsafe", Unsafe}, SeverityUnproven: {"unproven", Unproven}}

// settle worsens the plan's verdict by findings that stand, and notes those that were accepted.
func (p *DrainPlan) settle(findings []Finding, subject string) {
	for i := range findings {
		f := &findings[i]
		weighs, ok := weights[f.Severity]
		if !ok {
			continue
		}
		if !f.Accepted {
			p.Verdict = p.Verdict.Worse(weighs.verdict)
			continue
		}
		p.Accepted = append(p.Accepted, weighs.word+" "+cmp.Or(subject, "pod/"+f.Pod))
	}
}
