package drain

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// isReplacing reports whether an owner makes a new pod somewhere when this one goes. A DaemonSet's would come back here.
func isReplacing(o metav1.OwnerReference) bool {
	return o.Controller != nil && *o.Controller && o.Kind != "DaemonSet" && o.Kind != "Node" && o.Kind != "Job"
}

func compareText(a, b string) int { return strings.Compare(a, b) }

// result sums a run up.
func (d *run) result(err error) *Result {
	plan, _ := d.current()
	report := &guard.DrainReport{Steps: []guard.Step{}}
	if plan != nil {
		report.DrainPlan = *plan
	} else {
		report.DrainPlan = guard.DrainPlan{
			Nodes: d.opts.Nodes, Accepted: []string{}, Services: []guard.ServicePlan{},
			Withdraw: []guard.Entry{}, Pods: []guard.PodPlan{}, Findings: []guard.Finding{},
		}
	}
	report.APIVersion, report.Kind = guard.APIVersion, guard.KindDrainReport
	d.mu.Lock()
	report.Steps = append(report.Steps, d.steps...)
	d.mu.Unlock()
	slices.SortStableFunc(report.Steps, compareSteps)
	res := &Result{Report: report, Outcome: outcome(err, d.begun(), d.evictedAny()), Err: err, Took: d.Clock.Since(d.started)}
	for _, n := range d.nodes {
		res.Nodes = append(res.Nodes, n.state())
	}
	slices.SortFunc(res.Nodes, func(a, b NodeState) int { return cmp.Compare(a.Name, b.Name) })
	return res
}

// begun reports whether the run got as far as claiming its nodes.
func (d *run) begun() bool { return len(d.nodes) > 0 }

// evictedAny reports whether a pod was evicted from any node of the run.
func (d *run) evictedAny() bool {
	return slices.ContainsFunc(d.nodes, func(n *nodeRun) bool { return n.evictedCount() > 0 })
}

// state is what stands on the node at the end.
func (n *nodeRun) state() NodeState {
	node := n.held.Node()
	claim := n.held.Claim()
	n.mu.Lock()
	defer n.mu.Unlock()
	s := NodeState{
		Name: n.name, Deleted: n.deleted, Cordoned: node.Spec.Unschedulable, Labelled: n.labelled(),
		Claimed: claim.Run == n.RunID, PodsTotal: len(n.pods), Evicted: n.evicted, Covered: n.verified,
	}
	s.OutOf = slices.Compact(slices.Sorted(slices.Values(n.hooks)))
	var pods []*podState
	for _, p := range n.pods {
		if p.stage == stageGone || p.stage == stageSkipped {
			s.PodsGone++
			continue
		}
		pods = append(pods, p)
		s.Remaining = append(s.Remaining, *p.plan)
	}
	slices.SortFunc(s.Remaining, func(a, b guard.PodPlan) int { return a.Key().Compare(b.Key()) })
	s.Blocked = blockedBy(pods)
	if n.deleted {
		s.Cordoned, s.Labelled, s.Claimed = false, false, false
	}
	return s
}
