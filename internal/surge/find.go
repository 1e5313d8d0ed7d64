package surge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// Found is a surge of a plan, with what is changed for it.
type Found struct {
	guard.Surge
	Lever Lever
}

// Surges are the parts of some surges that a plan has.
func Surges(found []Found) []guard.Surge {
	if len(found) == 0 {
		return nil
	}
	out := make([]guard.Surge, len(found))
	for i := range found {
		out[i] = found[i].Surge
	}
	return out
}

// Question is what a surge is looked for in.
type Question struct {
	Plan   *guard.DrainPlan   // without surges
	Index  guard.Index        // that it was judged by
	Places *placement.Cluster // where pods can be placed; nil: not known
	Scope  Scope              // Off is Last
	Run    string             // of the run at hand; "": none
}

// Find lists the workloads of a plan that take one more replica first, and those that would have to and cannot, with the
// reason; sorted.
func Find(ctx context.Context, from Source, q Question) ([]Found, error) {
	f := &finder{Question: q, from: from, found: map[string]*candidate{}}
	for i := range q.Plan.Services {
		if s := &q.Plan.Services[i]; f.concerns(s) {
			if err := f.service(ctx, s.Key()); err != nil {
				return nil, err
			}
		}
	}
	f.mates()
	out := make([]Found, 0, len(f.found))
	var state *placement.State
	if q.Places != nil && len(f.found) > 0 {
		lent, giveBack := q.Places.Lend()
		defer giveBack()
		state = lent
		f.leave(state)
	}
	for _, key := range sortedKeys(f.found) {
		out = append(out, f.judge(f.found[key], state))
	}
	return out, nil
}

// finder is the work on one Question.
type finder struct {
	Question
	from  Source
	found map[string]*candidate // by kind and key
}

// candidate is a workload with pods that go.
type candidate struct {
	of       *workload
	services []string
	pods     []*corev1.Pod
}

// concerns reports whether a Service of the plan is one for which replicas are brought.
func (f *finder) concerns(s *guard.ServicePlan) bool {
	if f.Scope == All {
		return slices.ContainsFunc(s.Nodes, func(r guard.NodeRow) bool { return r.Before != guard.StateEmpty })
	}
	return slices.ContainsFunc(s.Findings, func(x guard.Finding) bool {
		return (x.Code == guard.LastEndpoint || x.Code == guard.NoEligibleNode) && !x.Accepted
	})
}

// service notes the workloads of the endpoints of a Service that go.
func (f *finder) service(ctx context.Context, key guard.Key) error {
	svc, ok := f.Index.Service(key)
	if !ok {
		return nil
	}
	for _, pod := range f.going(svc) {
		w, err := f.from.ownerOf(ctx, pod)
		if err != nil {
			return err
		}
		name := w.kind + " " + w.key.String()
		c := f.found[name]
		if c == nil {
			c = &candidate{of: w}
			f.found[name] = c
		}
		c.pods = append(c.pods, pod)
		if !slices.Contains(c.services, key.String()) {
			c.services = append(c.services, key.String())
		}
	}
	return nil
}

// going lists the pods of the plan's nodes that are endpoints of a Service and go, sorted by name.
func (f *finder) going(svc *guard.ServiceFacts) []*corev1.Pod {
	goes := map[types.UID]bool{}
	for i := range f.Plan.Pods {
		if p := &f.Plan.Pods[i]; p.Action == guard.ActionEvict || p.Action == guard.ActionDelete {
			goes[p.UID] = true
		}
	}
	seen := map[types.UID]bool{}
	var out []*corev1.Pod
	for i := range svc.Ports {
		for _, e := range svc.Ports[i].Endpoints {
			pod, ok := f.Index.Pod(e.Pod)
			if ok && goes[e.Pod] && !seen[e.Pod] && slices.Contains(f.Plan.Nodes, e.Node) {
				seen[e.Pod] = true
				out = append(out, pod)
			}
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// mates adds the other pods of the same workloads on the nodes: a budget counts them too.
func (f *finder) mates() {
	for _, c := range f.found {
		for _, node := range f.Plan.Nodes {
			for pod := range f.Index.Pods(node) {
				if sameOwner(pod, c.pods[0]) && !slices.Contains(c.pods, pod) {
					c.pods = append(c.pods, pod)
				}
			}
		}
	}
}

func sameOwner(a, b *corev1.Pod) bool {
	x, y := metav1.GetControllerOf(a), metav1.GetControllerOf(b)
	return x != nil && y != nil && x.UID == y.UID
}

// leave takes the nodes that go, or are going, out of those that a replica may run on.
func (f *finder) leave(state *placement.State) {
	for n := range f.Index.Nodes() {
		if n.Leaving != guard.Stays && (n.Claim == nil || n.Claim.Run != f.Run) {
			state.Leave(n.Name, string(n.Leaving))
		}
	}
	for _, n := range f.Plan.Nodes {
		state.Leave(n, "drained")
	}
}

// judge says what is changed for a candidate, or why it takes no further replica.
func (f *finder) judge(c *candidate, state *placement.State) Found {
	w := c.of
	out := Found{Surge: guard.Surge{
		Kind: w.kind, Namespace: w.key.Namespace, Name: w.key.Name, Services: slices.Sorted(slices.Values(c.services)),
		Reason: w.reason, Pods: map[types.UID]bool{},
	}}
	for _, p := range c.pods {
		out.Pods[p.UID] = true
	}
	if out.Reason != "" {
		return out
	}
	out.Lever, out.By = w.owns(), w.owns().field()
	out.Replicas = &guard.Count{Before: w.replicas(), After: w.replicas() + 1}
	if w.lever != nil && w.lever.stands() { // its pod may be there: room, quota and limits count it already
		out.Reason = f.another(w.lever.mark)
		out.Replicas = &guard.Count{Before: int(w.lever.mark.To) - 1, After: int(w.lever.mark.To)}
		return out
	}
	for _, why := range []string{w.severalOwners(), w.atMost(out.Replicas.After), w.rollout(), w.overQuota(c.pods[0]), f.sharedVolume(c.pods[0])} {
		if out.Reason == "" {
			out.Reason = why
		}
	}
	if out.Reason == "" && state != nil {
		placed := state.PlaceAll([]*corev1.Pod{placement.Replacement(c.pods[0])})[0]
		if out.May = placed.Node; !placed.Answer.Fits() {
			out.Reason = "a further pod fits nowhere: " + placed.Answer.String()
		}
	}
	return out
}

// another returns why the mark of another run that lives stands against this one; "" where its run is over.
func (f *finder) another(m *Mark) string {
	for n := range f.Index.Nodes() {
		c := n.Claim
		if c != nil && !c.Ended && runPart(c.Run) == m.Run && c.Run != f.Run && !slices.Contains(f.Plan.Nodes, n.Name) {
			return fmt.Sprintf("run %s of %s, which drains %s, has started one: wait for its end", c.Run, c.Holder, n.Name)
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Complete completes a plan by what replicas that are started first change: where they are asked for, again judges with
// them; else, where the plan is refused and one would help, the plan says so.
func Complete(ctx context.Context, from Source, q Question, again func([]guard.Surge) guard.DrainPlan) (*guard.DrainPlan, []Found, error) {
	asked := q.Scope != Off
	if !asked && !q.Plan.Refused() {
		return q.Plan, nil, nil
	}
	found, err := Find(ctx, from, q)
	switch {
	case !asked:
		if err == nil {
			q.Plan.AdviseSurge(Surges(found))
		}
		return q.Plan, nil, nil // with an error only a hint is lost
	case err != nil:
		return nil, nil, fmt.Errorf("look for replicas to start first: %w", err)
	}
	plan := again(Surges(found))
	return &plan, found, nil
}
