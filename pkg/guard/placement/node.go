package placement

import (
	"encoding/json"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	featuretypes "k8s.io/component-helpers/nodedeclaredfeatures/types"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// view is what the rules say of every node by its object and a pod's template alone. Pods whose templates agree in what
// they say of nodes share it.
type view struct {
	tolerations []corev1.Toleration
	selected    []bool   // by node: node selector and affinity match
	taint       []string // by node: "taint " and the first one that keeps the pod off, "" for none
}

// viewOf returns the view of a pod's template.
func (s *State) viewOf(p *corev1.Pod) *view {
	var required *corev1.NodeSelector
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	text, err := json.Marshal([]any{p.Spec.NodeSelector, required, p.Spec.Tolerations})
	if v, ok := s.views[string(text)]; ok && err == nil {
		return v
	}
	if len(s.views) >= mostKept/8 {
		clear(s.views)
	}
	v := &view{tolerations: p.Spec.Tolerations, selected: make([]bool, len(s.nodes)), taint: make([]string, len(s.nodes))}
	affinity := nodeaffinity.GetRequiredNodeAffinity(p)
	for i, n := range s.nodes {
		ok, err := affinity.Match(n.object)
		v.selected[i] = ok && err == nil
		v.see(n)
	}
	s.views[string(text)] = v
	return v
}

// see looks at the taints of a node again.
func (v *view) see(n *node) {
	v.taint[n.at] = ""
	if t := untolerated(n.object.Spec.Taints, v.tolerations); t != "" {
		v.taint[n.at] = "taint " + t
	}
}

// untolerated names the first taint that keeps a pod with these tolerations off.
//
// Source: Filter in tainttoleration/taint_toleration.go.
func untolerated(taints []corev1.Taint, tolerations []corev1.Toleration) string {
	if len(taints) == 0 {
		return ""
	}
	t, found := schedulingcorev1.FindMatchingUntoleratedTaint(logr.Discard(), taints, tolerations, keepsOut, false)
	if !found {
		return ""
	}
	if t.Value != "" {
		return t.Key + "=" + t.Value
	}
	return t.Key
}

// keepsOut reports whether a taint keeps pods from being placed.
//
// Source: DoNotScheduleTaintsFilterFunc in helper/taint.go.
func keepsOut(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// requestedNode is the rule of spec.nodeName.
//
// Source: Fits in nodename/node_name.go.
func requestedNode(_ *State, in *incoming) check {
	if in.Spec.NodeName == "" {
		return nil
	}
	reason := "nodeName " + in.Spec.NodeName
	return func(n *node) string {
		if n.name != in.Spec.NodeName {
			return reason
		}
		return ""
	}
}

// unschedulable is the rule of a cordon.
//
// Source: Filter in nodeunschedulable/node_unschedulable.go.
func unschedulable(_ *State, in *incoming) check {
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if schedulingcorev1.TolerationsTolerateTaint(logr.Discard(), in.Spec.Tolerations, &cordon, false) {
		return nil
	}
	return func(n *node) string {
		if n.cordoned {
			return "cordoned"
		}
		return ""
	}
}

// taints is the rule of taints and tolerations.
func taints(_ *State, in *incoming) check {
	return func(n *node) string { return in.view.taint[n.at] }
}

// nodeAffinity is the rule of the node selector and of required node affinity.
//
// Source: Filter in nodeaffinity/node_affinity.go.
func nodeAffinity(_ *State, in *incoming) check {
	reason := "not in its node affinity"
	if len(in.Spec.NodeSelector) > 0 {
		reason = "not in its node selector"
	}
	return func(n *node) string {
		if !in.view.selected[n.at] {
			return reason
		}
		return ""
	}
}

// room is the rule of resources and of the number of pods.
func room(_ *State, in *incoming) check {
	return func(n *node) string { return n.tooLittle(&in.asks) }
}

// schedulerVersion is the version whose declared features are asked for.
const schedulerVersion = "1.37.0"

// declaredFeatures is the rule of pods that need what only newer or differently configured kubelets can do.
//
// Source: Filter in nodedeclaredfeatures/nodedeclaredfeatures.go.
func declaredFeatures(_ *State, in *incoming) check {
	framework := nodedeclaredfeatures.DefaultFramework
	needs, err := framework.InferForPodScheduling(&featuretypes.PodInfo{Spec: &in.Spec}, version.MustParseSemantic(schedulerVersion))
	if err != nil || needs.IsEmpty() {
		return nil
	}
	return func(n *node) string {
		has := framework.TryMap(n.object.Status.DeclaredFeatures)
		if ok, err := needs.IsSubset(has); err != nil || !ok {
			return "kubelet lacks a feature"
		}
		return ""
	}
}
