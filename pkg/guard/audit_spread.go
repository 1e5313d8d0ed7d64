package guard

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// tainted finds spread constraints that count nodes which take no pod of the workload: such a node stays the emptiest, so
// no other may have more than maxSkew pods.
func (a *audited) tainted() {
	var found, nodes []string
	for _, w := range a.workloads {
		if w.Kind == kindDaemonSet {
			continue
		}
		bad := map[string]bool{}
		for i := range w.Spec.TopologySpreadConstraints {
			for _, n := range a.barren(w.Spec, &w.Spec.TopologySpreadConstraints[i]) {
				bad[n] = true
			}
		}
		if len(bad) == 0 {
			continue
		}
		found = append(found, w.Title())
		nodes = append(nodes, sortedKeys(bad)...)
		a.hazard(Hazard{Code: SpreadCountsTainted, Workload: w, Nodes: sortedKeys(bad)})
	}
	if len(found) == 0 {
		return
	}
	slices.Sort(nodes)
	a.add(Finding{
		Code: SpreadCountsTainted, Severity: Warn, Nodes: slices.Compact(nodes),
		Message: "the spread of " + strings.Join(found, ", ") + " counts tainted nodes that take none of its pods: further pods stay Pending",
		Advice:  "nodeTaintsPolicy Honor in its topologySpreadConstraints",
	})
}

// barren lists the nodes of the domains of a constraint that it counts, and in which no node takes a pod.
func (a *audited) barren(spec *corev1.PodSpec, c *corev1.TopologySpreadConstraint) []string {
	if !CountsTainted(c) {
		return nil
	}
	anyNode := c.NodeAffinityPolicy != nil && *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore
	nodes, fertile := map[string][]string{}, map[string]bool{}
	for n := range a.ix.Nodes() {
		domain, ok := n.Labels[c.TopologyKey]
		if !ok || n.leaves("") || !anyNode && !selectedBy(spec, n) {
			continue
		}
		if canRun(spec, n) {
			fertile[domain] = true
		} else {
			nodes[domain] = append(nodes[domain], n.Name)
		}
	}
	var out []string
	for _, domain := range sortedKeys(nodes) {
		if !fertile[domain] {
			out = append(out, nodes[domain]...)
		}
	}
	return out
}

// CountsTainted reports whether a constraint that must hold counts nodes whose taints keep the pod off.
func CountsTainted(c *corev1.TopologySpreadConstraint) bool {
	return c.WhenUnsatisfiable == corev1.DoNotSchedule &&
		(c.NodeTaintsPolicy == nil || *c.NodeTaintsPolicy != corev1.NodeInclusionPolicyHonor)
}
