package cluster

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DumpCommand writes everything that Read wants of a cluster, the objects of balancers apart.
const DumpCommand = "kubectl get nodes,services,endpointslices,pods,poddisruptionbudgets,daemonsets,deployments,statefulsets" +
	",replicasets,horizontalpodautoscalers --all-namespaces -o json"

// Incomplete says that files lack kinds without which an answer would be a guess.
type Incomplete struct {
	Kinds []string // "Node", "EndpointSlice", "Pod"
}

// Error names the kinds and the command that makes a whole dump.
func (e *Incomplete) Error() string {
	return "the files hold no " + strings.Join(e.Kinds, ", no ") + ": dump the whole cluster with " + DumpCommand
}

// Lacks returns an *Incomplete when files do not hold what the scope needs. Call it after Read.
func (s *Snapshot) Lacks(scope Scope) error {
	e := &Incomplete{}
	if len(s.nodes) == 0 {
		e.Kinds = append(e.Kinds, "Node")
	}
	if len(s.services) > 0 && s.counts["EndpointSlice"] == 0 {
		e.Kinds = append(e.Kinds, "EndpointSlice")
	}
	if (len(scope.Nodes) > 0 || scope.AllPods || scope.Namespace != "") && s.counts["Pod"] == 0 {
		e.Kinds = append(e.Kinds, "Pod")
	}
	if len(e.Kinds) == 0 {
		return nil
	}
	return e
}

// Doubts lists, for people, the kinds that files hold none of although most clusters have some: the answer is right only
// if this one has none either.
func (s *Snapshot) Doubts() []string {
	var out []string
	if len(s.raw) == 0 {
		out = append(out, "the files hold no Service: no traffic is judged")
	}
	if s.counts["PodDisruptionBudget"] == 0 {
		out = append(out, "the files hold no PodDisruptionBudget: evictions are judged as if there were none")
	}
	if s.daemonSets == nil && s.anyDaemonPod() {
		out = append(out, "the files hold no DaemonSet: pods of one are taken at their word")
	}
	return out
}

func (s *Snapshot) anyDaemonPod() bool {
	for _, pods := range s.podsOn {
		for _, p := range pods {
			if ownedByDaemonSet(p) {
				return true
			}
		}
	}
	return false
}

func ownedByDaemonSet(p *corev1.Pod) bool {
	ref := metav1.GetControllerOf(p)
	return ref != nil && ref.Kind == "DaemonSet"
}
