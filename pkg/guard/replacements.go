package guard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// Replacements is where the pods of a Service that go may run again, and what its nodes are then.
type Replacements struct {
	Pods  []Replacement `json:"pods"`
	Nodes ServingNodes  `json:"nodes"`
	Share *Share        `json:"share,omitempty"` // only where the balancer shares by node
}

// Replacement is where the pod may run that comes for one that goes.
type Replacement struct {
	Pod     string `json:"pod"`               // the one that goes, namespace/name
	Fits    int    `json:"fits"`              // nodes it can go to
	Unread  int    `json:"unread,omitempty"`  // further nodes that nothing is known against: what runs there was not read
	May     string `json:"mayRun,omitempty"`  // the node on which it may land: a prediction
	Reason  string `json:"reason,omitempty"`  // why it fits nowhere: "0 of 5 nodes: 3 too little cpu, 2 taint x"
	Unknown string `json:"unknown,omitempty"` // why the scheduler's rules do not tell
	advice  string
}

// ServingNodes is on how many nodes a Service has an endpoint, of those that its balancer sends to or could.
type ServingNodes struct {
	Before   int `json:"before"`
	Drained  int `json:"drained"`  // after the drain, without replacements
	Replaced int `json:"replaced"` // with the replacements where they may run
	Back     int `json:"back"`     // once the drained nodes are back: what waited may run there, nothing else moves
}

// replace predicts where the pods that go are replaced, and says so at the Services they serve.
func replace(ix Index, req *Request, pods []PodPlan, judgements []*judgement) {
	if req.Cluster == nil || len(judgements) == 0 {
		return
	}
	going := replaced(ix, req.Nodes, pods)
	if len(going) == 0 {
		return
	}
	state, giveBack := req.Cluster.Lend()
	defer giveBack()
	for n := range ix.Nodes() {
		if n.leaves(req.Run) {
			state.Leave(n.Name, string(n.Leaving))
		}
	}
	for _, n := range req.Nodes {
		state.Leave(n, "drained")
	}
	for i := range pods {
		if pods[i].Action != ActionSkip || pods[i].Waiting {
			state.Evict(pods[i].UID)
		}
	}
	places := place(state, going, req.Nodes)
	for _, j := range judgements {
		j.replacements(places)
	}
}

// placed is where the pod may run that comes for the one of this UID.
type placed struct {
	of   *corev1.Pod
	at   placement.Placed
	back string // the node of the request on which it may run once that is back, when it waits until then
}

// place places replacements while the nodes of a request are away, and those that fit nowhere once they are back.
func place(state *placement.State, going []*corev1.Pod, away []string) map[types.UID]*placed {
	out := make(map[types.UID]*placed, len(going))
	fresh := make([]*corev1.Pod, len(going))
	for i, p := range going {
		fresh[i] = placement.Replacement(p)
	}
	var waiting []*placed
	for i, at := range state.PlaceAll(fresh) {
		p := &placed{of: going[i], at: at}
		out[going[i].UID] = p
		if !at.Answer.Fits() {
			waiting = append(waiting, p)
		}
	}
	if len(waiting) == 0 {
		return out
	}
	for _, n := range away {
		state.Return(n)
	}
	again := make([]*corev1.Pod, len(waiting))
	for i, p := range waiting {
		again[i] = p.at.Pod
	}
	for i, at := range state.PlaceAll(again) {
		waiting[i].back = at.Node
	}
	return out
}

// replaced lists the pods that go and come back by their controllers, in the order in which they go: those that wait for
// no Service first.
func replaced(ix Index, nodes []string, pods []PodPlan) []*corev1.Pod {
	plans := make(map[types.UID]*PodPlan, len(pods))
	for i := range pods {
		plans[pods[i].UID] = &pods[i]
	}
	var out []*corev1.Pod
	for _, node := range nodes {
		for pod := range ix.Pods(node) {
			p := plans[pod.UID]
			if p != nil && p.Action != ActionSkip && comesBack(pod) {
				out = append(out, pod)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *corev1.Pod) int {
		return cmp.Compare(min(1, len(plans[a.UID].After)), min(1, len(plans[b.UID].After)))
	})
	return out
}

// comesBack reports whether a controller makes another pod in place of one that is evicted, on a node that the scheduler
// picks.
func comesBack(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind != "DaemonSet" && owner.Kind != "Node" && !Finished(pod)
}

// replacements fills what a plan says of a Service's replacements.
func (j *judgement) replacements(places map[types.UID]*placed) {
	var own []*placed
	for _, node := range sortedKeys(j.loss.Nodes) {
		serving := j.podsServing(node)
		for pod := range j.ix.Pods(node) {
			if p, ok := places[pod.UID]; ok && serving[pod.UID] {
				own = append(own, p)
			}
		}
	}
	if len(own) == 0 {
		return
	}
	r := &Replacements{}
	for _, p := range own {
		r.Pods = append(r.Pods, replacementOf(p))
	}
	serving := j.serving(own)
	r.Nodes = serving.nodes()
	r.Share = j.share(serving)
	j.plan.Replacements = r
	j.unschedulable(own)
	j.hotSpot(r.Share)
	sortFindings(j.plan.Findings)
}

// podsServing are the pods of a node that are usable endpoints of the Service.
func (j *judgement) podsServing(node string) map[types.UID]bool {
	out := map[types.UID]bool{}
	for i := range j.cover.ports {
		for _, e := range j.cover.ports[i].local[node].usable() {
			out[e.Pod] = true
		}
	}
	return out
}

func replacementOf(p *placed) Replacement {
	a := &p.at.Answer
	r := Replacement{
		Pod: p.of.Namespace + "/" + p.of.Name, Fits: len(a.Nodes), Unread: len(a.Unread), May: p.at.Node, Unknown: a.Unknown,
	}
	if !a.Fits() {
		r.Reason = a.String()
		if reasons := a.Reasons(); len(reasons) > 0 {
			r.advice = reasons[0].Advice
		}
	}
	return r
}

// unschedulable warns of replacements that fit on no node that stays, grouped by what stops them.
func (j *judgement) unschedulable(own []*placed) {
	names, nodes := map[string][]string{}, map[string]bool{}
	advice := map[string]string{}
	for i := range j.plan.Replacements.Pods {
		r := &j.plan.Replacements.Pods[i]
		if r.Reason == "" {
			continue
		}
		names[r.Reason] = append(names[r.Reason], own[i].of.Name)
		nodes[own[i].of.Spec.NodeName] = true
		advice[r.Reason] = r.advice
	}
	if len(names) == 0 {
		return
	}
	reasons := sortedKeys(names)
	parts := make([]string, len(reasons))
	for i, reason := range reasons {
		parts[i] = fmt.Sprintf("%s fits nowhere and stays Pending (%s)", few(names[reason]), reason)
	}
	j.add(Finding{
		Code: ReplacementUnschedulable, Severity: Warn, Nodes: sortedKeys(nodes),
		Message: "the replacement of " + strings.Join(parts, "; that of "), Advice: advice[reasons[0]],
	})
}

// few names some pods: "web-1", "web-1 and web-2", "web-1 and 4 more".
func few(names []string) string {
	switch len(names) {
	case 1:
		return names[0]
	case 2:
		return names[0] + " and " + names[1]
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}
