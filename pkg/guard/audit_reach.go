package guard

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// internalTrap finds nodes on which no pod can reach a Service of internalTrafficPolicy Local, since none of its endpoints
// is there.
func (a *audited) internalTrap() {
	if !a.cover.Has() {
		return
	}
	var nodes []string
	for n := range a.ix.Nodes() {
		if state, _ := a.cover.State(n.Name); state == StateEmpty && n.Ready && !n.Virtual && !n.leaves("") {
			nodes = append(nodes, n.Name)
		}
	}
	if len(nodes) == 0 {
		return
	}
	daemons := len(a.workloads) > 0 && !slices.ContainsFunc(a.workloads, func(w *Workload) bool { return w.Kind != kindDaemonSet })
	f := Finding{
		Code: InternalLosesLocal, Severity: Warn, Nodes: nodes,
		Message: "internalTrafficPolicy Local: pods there cannot reach the Service",
		Advice:  "a DaemonSet on every node; or internalTrafficPolicy Cluster, with trafficDistribution PreferSameNode (Kubernetes 1.35)",
	}
	if daemons { // it is meant for some nodes, so clients elsewhere may not be
		f.Severity = Info
	}
	a.add(f)
	if !daemons {
		a.hazard(Hazard{Code: InternalLosesLocal, Nodes: nodes})
	}
}

// floors finds autoscalers of a workload that may never ask for as many replicas as its floor, or may ask for fewer.
func (a *audited) floors() {
	for _, w := range a.workloads {
		if len(w.Autoscalers) == 0 {
			continue
		}
		plan := &ScalePlan{}
		s := &scaling{target: a.scaleTarget(w), ix: a.ix, now: a.settled(), plan: plan}
		floor, off := s.floorOf(a.judgement)
		if off {
			continue
		}
		plan.Floor = floor
		s.autoscalers()
		for i := range w.Autoscalers {
			if h := &w.Autoscalers[i]; h.Min < floor.Value {
				a.hazard(Hazard{Code: AutoscalerBelowFloor, Workload: w, Autoscaler: h, Floor: floor.Value})
			}
		}
		a.merge(plan.Findings)
	}
}

// merge adds findings, one a code.
func (a *audited) merge(findings []Finding) {
	for _, f := range findings {
		i := slices.IndexFunc(a.plan.Findings, func(o Finding) bool { return o.Code == f.Code })
		if i < 0 {
			a.add(f)
			continue
		}
		a.plan.Findings[i].Message = fmt.Sprintf("%s; %s", a.plan.Findings[i].Message, f.Message)
	}
}

// scaleTarget states a workload as the rules of a scaling want it, with the endpoints for its pods.
func (a *audited) scaleTarget(w *Workload) *ScaleTarget {
	t := &ScaleTarget{
		Kind: w.Kind, Key: w.Key, Replicas: w.Replicas, Template: &corev1.PodTemplateSpec{Spec: *w.Spec},
		Selector: labels.SelectorFromSet(w.Labels), Autoscalers: w.Autoscalers,
	}
	seen := map[types.UID]bool{}
	for i := range a.cover.ports {
		for _, e := range a.cover.ports[i].left {
			if e.Pod != "" && !seen[e.Pod] && a.ownerOf(&e) == w {
				seen[e.Pod] = true
				t.Pods = append(t.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: w.Key.Namespace, Name: e.PodKey.Name, UID: e.Pod, Labels: w.Labels,
				}})
			}
		}
	}
	return t
}

// settled is a time at which every node has been Ready for as long as a floor asks: settings are judged for the nodes that
// there are.
func (a *audited) settled() time.Time {
	var last time.Time
	for n := range a.ix.Nodes() {
		if n.ReadySince.After(last) {
			last = n.ReadySince
		}
	}
	return last.Add(settledAfter)
}
