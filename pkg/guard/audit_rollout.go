package guard

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// rollouts finds workloads whose rolling update cannot go on, and those whose rolling update leaves a node that gets
// traffic without an endpoint.
func (a *audited) rollouts() {
	var stuck, empties []string
	var emptied []string
	advice := "two pods on each node, kept apart by a spread"
	for _, w := range a.workloads {
		at := a.podsOf(w)
		if why := a.deadlock(w, at); why != "" {
			stuck = append(stuck, w.Title()+": "+why)
			a.hazard(Hazard{Code: RolloutDeadlock, Workload: w})
		}
		if nodes, why := a.emptied(w, at); len(nodes) > 0 {
			empties = append(empties, w.Title()+" "+why)
			emptied = append(emptied, nodes...)
			a.hazard(Hazard{Code: RolloutEmptiesNode, Workload: w, Nodes: nodes})
			if w.Kind != kindStatefulSet && !hostPorts(w.Spec) {
				advice = "maxSurge 1, maxUnavailable 0 and a spread that counts each revision by itself " +
					"(matchLabelKeys pod-template-hash); or a DaemonSet with maxSurge 1"
			}
		}
	}
	if len(stuck) > 0 {
		a.add(Finding{
			Code: RolloutDeadlock, Severity: Warn,
			Message: strings.Join(stuck, "; ") + ": a rollout never ends",
			Advice:  "let a pod go first (maxUnavailable 1, maxSurge 0), or let the next revision share a node with this one",
		})
	}
	if len(empties) > 0 {
		slices.Sort(emptied)
		a.add(Finding{
			Code: RolloutEmptiesNode, Severity: Warn, Nodes: slices.Compact(emptied),
			Message: strings.Join(empties, "; ") + ": a rolling update may leave nodes without an endpoint",
			Advice:  advice,
		})
	}
}

// deadlock says why a rolling update of a workload could not go on; "" when it could. Its controller takes no pod away
// before a new one is Ready, and the new one has no node.
func (a *audited) deadlock(w *Workload, at map[string]int) string {
	r := &w.Rollout
	if r.Type != rolloutRolling || r.Surge == 0 || r.Unavailable > 0 || w.Replicas == 0 {
		return ""
	}
	switch w.Kind {
	case kindDaemonSet:
		if hostPorts(w.Spec) {
			return "maxSurge puts a second pod on a node, and its host ports are taken there"
		}
	case kindDeployment:
		if answer := a.oneMore(w, at); !answer.Fits() {
			return fmt.Sprintf("maxSurge %d and maxUnavailable 0, and a further pod fits nowhere (%s)", r.Surge, answer.String())
		}
	}
	return ""
}

// emptied lists the nodes that get traffic and may be without an endpoint in the middle of a rolling update of a workload,
// with the reason.
func (a *audited) emptied(w *Workload, at map[string]int) (nodes []string, why string) {
	few := 1 // as many pods of a node may go at once
	switch r := &w.Rollout; {
	case r.Type == rolloutRecreate:
		few, why = int(w.Replicas), "has strategy Recreate: every pod goes before the next comes"
	case r.Type != rolloutRolling, a.outlivesCheck(w):
		return nil, ""
	case w.Kind == kindDaemonSet && r.Surge > 0:
		return nil, ""
	case w.Kind == kindDaemonSet:
		why = "has maxSurge 0: the pod of a node goes before the next comes there"
	case w.Kind == kindStatefulSet:
		why = "is a StatefulSet: a pod goes before the next comes"
	case hostPorts(w.Spec):
		few, why = max(1, r.Unavailable), "has host ports: the pod of a node goes before the next comes there"
	case r.Surge == 1 && r.Unavailable == 0 && apartByRevision(w):
		return nil, ""
	case r.Unavailable > 0:
		few = r.Unavailable
		why = fmt.Sprintf("has maxUnavailable %d: as many pods of a node go before the next are Ready", few)
	default:
		why = "may bring two new pods to one node and take the last of another"
	}
	for _, n := range a.traffic {
		if k := at[n.Name]; k > 0 && k <= few && !a.others(n.Name, k) {
			nodes = append(nodes, n.Name)
		}
	}
	return nodes, why
}

// outlivesCheck reports whether the pods of a workload go on serving, once they go, until a balancer that probes the health
// check has taken their node out.
func (a *audited) outlivesCheck(w *Workload) bool {
	check := a.svc.Rotation.HealthCheck
	if check == nil || a.svc.PublishNotReady {
		return false
	}
	pod := w.pod("old")
	return servesAfterEviction(pod, graceOf(pod, -1)) >= check.removalTime()
}

// others reports whether a node has more Ready endpoints than some number, of every port.
func (a *audited) others(node string, own int) bool {
	for i := range a.cover.ports {
		if len(a.cover.ports[i].local[node].ready) <= own {
			return false
		}
	}
	return true
}

// apartByRevision reports whether no two pods of one revision share a node while another node has none of it. Then each
// new pod comes to a node of its own, where its coming makes the old one the first to go: a ReplicaSet takes those first that
// share a node.
func apartByRevision(w *Workload) bool {
	own := func(keys []string) bool { return slices.Contains(keys, w.revisionLabel()) }
	for i := range w.Spec.TopologySpreadConstraints {
		c := &w.Spec.TopologySpreadConstraints[i]
		if c.TopologyKey == corev1.LabelHostname && c.WhenUnsatisfiable == corev1.DoNotSchedule && c.MaxSkew == 1 && own(c.MatchLabelKeys) {
			return true
		}
	}
	t, _ := ApartByNode(w.Spec)
	return t != nil && own(t.MatchLabelKeys)
}

// ApartByNode returns the required anti-affinity by which a template keeps pods off a node, with its place among the terms;
// nil when there is none.
func ApartByNode(spec *corev1.PodSpec) (*corev1.PodAffinityTerm, int) {
	if spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		return nil, 0
	}
	terms := spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for i := range terms {
		if terms[i].TopologyKey == corev1.LabelHostname {
			return &terms[i], i
		}
	}
	return nil, 0
}
