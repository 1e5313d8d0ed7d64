package placement

import (
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	featuretypes "k8s.io/component-helpers/nodedeclaredfeatures/types"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// view is what the rules say of every node by its object and a pod's template alone. Pods of one owner share it.
type view struct {
	of       *corev1.PodSpec
	selected []bool   // by node: node selector and affinity match
	taint    []string // by node: the first taint that keeps the pod off, "" for none
}

// viewOf returns the view of a pod's template, the one of its siblings where their templates agree.
func (s *State) viewOf(p *corev1.Pod) *view {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner != nil {
		if v, ok := s.views[owner.UID]; ok && sameTemplate(v.of, &p.Spec) {
			return v
		}
	}
	v := &view{of: &p.Spec, selected: make([]bool, len(s.nodes)), taint: make([]string, len(s.nodes))}
	affinity := nodeaffinity.GetRequiredNodeAffinity(p)
	for i, n := range s.nodes {
		ok, err := affinity.Match(n.object)
		v.selected[i] = ok && err == nil
		v.taint[i] = untolerated(n.object.Spec.Taints, p.Spec.Tolerations)
	}
	if owner != nil {
		s.views[owner.UID] = v
	}
	return v
}

// sameTemplate reports whether two pods have the same view.
func sameTemplate(a, b *corev1.PodSpec) bool {
	if a == b {
		return true
	}
	var na, nb *corev1.NodeAffinity
	if a.Affinity != nil {
		na = a.Affinity.NodeAffinity
	}
	if b.Affinity != nil {
		nb = b.Affinity.NodeAffinity
	}
	return equality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector) && equality.Semantic.DeepEqual(na, nb) &&
		slices.EqualFunc(a.Tolerations, b.Tolerations, func(x, y corev1.Toleration) bool { return equality.Semantic.DeepEqual(x, y) })
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
	return func(n *node) string {
		if n.object.Name != in.Spec.NodeName {
			return "nodeName " + in.Spec.NodeName
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
		if n.object.Spec.Unschedulable {
			return "cordoned"
		}
		return ""
	}
}

// taints is the rule of taints and tolerations.
func taints(_ *State, in *incoming) check {
	return func(n *node) string {
		if t := in.view.taint[n.at]; t != "" {
			return "taint " + t
		}
		return ""
	}
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
