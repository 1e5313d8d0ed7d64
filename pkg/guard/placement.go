package guard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// canRun reports whether a pod of that template may run on a node by its node selector, its node affinity and the
// node's taints. Room, volumes and other pods are not looked at.
func canRun(spec *corev1.PodSpec, n *NodeFacts) bool {
	return selectedBy(spec, n) && toleratesAll(spec, n)
}

func selectedBy(spec *corev1.PodSpec, n *NodeFacts) bool {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(node)
	return err == nil && ok
}

func toleratesAll(spec *corev1.PodSpec, n *NodeFacts) bool {
	_, untolerated := schedulingcorev1.FindMatchingUntoleratedTaint(logr.Discard(), n.Taints, spec.Tolerations, keepsOut, true)
	return !untolerated
}

// keepsOut reports whether a taint keeps pods off a node for good; that of a cordon does not.
func keepsOut(t *corev1.Taint) bool {
	return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != corev1.TaintNodeUnschedulable
}

// pinnedTo returns why the pods of a template can run on nodes of a loss only, by their node selector and affinity;
// "" when they could run on some other node.
func pinnedTo(spec *corev1.PodSpec, ix Index, loss map[string]bool) string {
	pin := pinOf(spec)
	if pin == "" {
		return ""
	}
	for n := range ix.Nodes() {
		if !loss[n.Name] && !n.Virtual && selectedBy(spec, n) {
			return ""
		}
	}
	return pin
}

// pinOf words what ties a template to nodes: "nodeSelector kubernetes.io/hostname=node-1"; "" when nothing does.
func pinOf(spec *corev1.PodSpec) string {
	var parts []string
	for _, k := range sortedKeys(spec.NodeSelector) {
		parts = append(parts, k+"="+spec.NodeSelector[k])
	}
	switch {
	case len(parts) > 0:
		return "nodeSelector " + strings.Join(parts, ",")
	case spec.Affinity != nil && spec.Affinity.NodeAffinity != nil && spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil:
		return "required node affinity"
	}
	return ""
}

// spreads reports whether something keeps the pods of a template apart by node.
func spreads(spec *corev1.PodSpec) bool {
	if slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.TopologyKey == corev1.LabelHostname
	}) {
		return true
	}
	if spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	anti := spec.Affinity.PodAntiAffinity
	for i := range anti.RequiredDuringSchedulingIgnoredDuringExecution {
		if anti.RequiredDuringSchedulingIgnoredDuringExecution[i].TopologyKey == corev1.LabelHostname {
			return true
		}
	}
	for i := range anti.PreferredDuringSchedulingIgnoredDuringExecution {
		if anti.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm.TopologyKey == corev1.LabelHostname {
			return true
		}
	}
	return false
}

// placement finds workloads behind a Service that leave nodes of its rotation without a pod by their own settings.
func (a *audited) placement() {
	if len(a.traffic) < 2 {
		return
	}
	var pinned, loose []string
	var missing []string
	for _, w := range a.workloads {
		var barred []string
		for _, n := range a.traffic {
			if !canRun(w.Spec, n) {
				barred = append(barred, n.Name)
			}
		}
		if pin := pinOf(w.Spec); len(barred) > 0 && !a.svc.Rotation.Follows && pin != "" {
			pinned = append(pinned, w.Title()+" has "+pin)
			missing = append(missing, barred...)
			keys, affinity := a.pins(w.Spec, barred)
			a.hazard(Hazard{Code: PlacementPinned, Workload: w, Nodes: barred, Pins: keys, Affinity: affinity})
		}
		if w.Kind != kindDaemonSet && w.Replicas > 1 && !spreads(w.Spec) && !hostPorts(w.Spec) {
			loose = append(loose, w.Title())
			a.hazard(Hazard{Code: SpreadMissing, Workload: w})
		}
	}
	if len(pinned) > 0 {
		slices.Sort(missing)
		a.add(Finding{
			Code: PlacementPinned, Severity: Warn, Nodes: slices.Compact(missing),
			Message: strings.Join(pinned, "; ") + ": fewer nodes can run it than get traffic",
			Advice: "a DaemonSet with maxSurge 1 is one a node by construction; or drop the pin and spread with maxSkew 1 on " +
				"kubernetes.io/hostname, DoNotSchedule, nodeTaintsPolicy Honor, matchLabelKeys pod-template-hash",
		})
	}
	if len(loose) > 0 {
		a.add(Finding{
			Code: SpreadMissing, Severity: Warn,
			Message: strings.Join(loose, ", ") + ": nothing spreads the pods over nodes",
			Advice: fmt.Sprintf("topologySpreadConstraints with maxSkew 1 on %s, whenUnsatisfiable DoNotSchedule, nodeTaintsPolicy Honor",
				corev1.LabelHostname),
		})
	}
}

// pins says by what a template keeps some nodes out: labels of its node selector, and its required node affinity.
func (a *audited) pins(spec *corev1.PodSpec, barred []string) (keys []string, affinity bool) {
	out := map[string]bool{}
	bare := *spec
	bare.NodeSelector = nil
	for _, name := range barred {
		n, _ := a.ix.Node(name)
		for k, v := range spec.NodeSelector {
			if has, ok := n.Labels[k]; !ok || has != v {
				out[k] = true
			}
		}
		affinity = affinity || !selectedBy(&bare, n)
	}
	return sortedKeys(out), affinity
}

// trafficNodes lists the nodes that the balancer sends to, or may.
func (j *judgement) trafficNodes() []*NodeFacts {
	var out []*NodeFacts
	for n := range j.ix.Nodes() {
		if n.Ready && !n.leaves(j.loss.Run) && j.eligible(n.Name) {
			out = append(out, n)
		}
	}
	return out
}

// behind reports whether the pods of a workload are endpoints of a Service.
func behind(svc *ServiceFacts, w *Workload) bool {
	if len(svc.Selector) == 0 {
		return false
	}
	for k, v := range svc.Selector {
		if w.Labels[k] != v {
			return false
		}
	}
	return true
}
