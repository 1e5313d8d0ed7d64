package guard

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// Spare is a pod that its node can do without: for each port of each Local Service that it serves another endpoint stays
// there.
type Spare struct {
	Pod  Key
	UID  types.UID
	Node string
}

// Spares lists the pods of a Service that their nodes can do without, of the most crowded node first.
func Spares(svc *ServiceFacts, ix Index) []Spare {
	j := newJudgement(svc, ix, &Loss{Nodes: map[string]bool{}, Flags: &Flags{}})
	crowd, out := map[string]int{}, []Spare{}
	for _, node := range j.cover.Nodes() {
		if !j.stays(node) {
			continue
		}
		var ready []Endpoint
		for i := range j.cover.ports {
			ready = append(ready, j.cover.ports[i].local[node].ready...)
		}
		if crowd[node] = distinct(ready); crowd[node] < 2 {
			continue
		}
		seen := map[types.UID]bool{}
		for i := range ready {
			e := &ready[i]
			if e.Pod != "" && !seen[e.Pod] && j.podLives(e) && spared(ix, e) {
				seen[e.Pod] = true
				out = append(out, Spare{Pod: e.PodKey, UID: e.Pod, Node: node})
			}
		}
	}
	slices.SortFunc(out, func(a, b Spare) int {
		return cmp.Or(cmp.Compare(crowd[b.Node], crowd[a.Node]), strings.Compare(a.Node, b.Node), a.Pod.Compare(b.Pod))
	})
	return out
}

// spared reports whether each port of each Local Service that a pod serves keeps another endpoint on its node that stays.
func spared(ix Index, of *Endpoint) bool {
	for svc := range ix.ServicesOn(of.Node) {
		if !svc.Local() {
			continue
		}
		j := newJudgement(svc, ix, &Loss{Nodes: map[string]bool{}, Flags: &Flags{}})
		for i := range j.cover.ports {
			pc := &j.cover.ports[i]
			serves := slices.ContainsFunc(pc.local[of.Node].ready, func(e Endpoint) bool { return e.Pod == of.Pod })
			stays := slices.ContainsFunc(pc.left, func(e Endpoint) bool { return e.Node == of.Node && e.Pod != of.Pod && j.remains(&e) })
			if serves && !stays {
				return false
			}
		}
	}
	return true
}

// WantsEndpoint reports whether a Service that has no endpoint on a node wants one there: its balancer sends to the node
// whether or not there is one; or each other node that it sends to or could, and that can run the pods of this template, has
// one. returning are nodes that come back at the same time, the node among them: they do not count as others.
func WantsEndpoint(svc *ServiceFacts, ix Index, spec *corev1.PodSpec, returning []string) bool {
	r := &svc.Rotation
	if !svc.External || r.Nobody {
		return false
	}
	if !r.Follows && r.HealthCheck == nil {
		return true
	}
	j := newJudgement(svc, ix, &Loss{Nodes: map[string]bool{}, Flags: &Flags{}})
	for n := range ix.Nodes() {
		if slices.Contains(returning, n.Name) || n.Cordoned || !j.stays(n.Name) || !j.eligible(n.Name) || !canRun(spec, n) {
			continue
		}
		if state, _ := j.cover.State(n.Name); state == StateEmpty {
			return false
		}
	}
	return true
}

// MayMove says why a spare pod may not be evicted so that its replacement fills a gap on a node; "" when it may. local lets
// what is in the pod's emptyDir be lost. cluster is where pods can be placed; nil: nobody looked.
func MayMove(s *Spare, to string, ix Index, cluster *placement.Cluster, local bool) string {
	pod, ok := ix.Pod(s.UID)
	if !ok {
		return "the pod is gone"
	}
	if !comesBack(pod) {
		return "no controller makes another one in its place"
	}
	for _, a := range doNotEvict {
		if pod.Annotations[a.key] == a.value {
			return fmt.Sprintf("annotation %s=%s asks to leave it alone", a.key, a.value)
		}
	}
	if pod.Annotations[AnnotationKeeper] != "" {
		return "the gate keeps it"
	}
	if !local && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }) {
		return "it has local storage (emptyDir)"
	}
	if a := PredictEviction(pod, slices.Collect(ix.Budgets(pod.Namespace))); a.Code != http.StatusCreated {
		return fmt.Sprintf("budget %s/%s holds it", a.Budget.Namespace, a.Budget.Name)
	}
	if cluster == nil {
		return ""
	}
	state, giveBack := cluster.Lend()
	defer giveBack()
	state.Evict(pod.UID)
	answer := state.Candidates(placement.Replacement(pod))
	if answer.Unknown != "" || slices.Contains(answer.Nodes, to) || slices.Contains(answer.Unread, to) {
		return ""
	}
	for _, r := range answer.Refused {
		if r.Node == to {
			return "its replacement would not fit there: " + r.Reason
		}
	}
	return "its replacement would not fit there"
}
