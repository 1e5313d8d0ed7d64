package lbhooks

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// Excluded returns a copy of a node that bears the exclude label as safedrain writes it, for asking what a rule over node
// labels would make of it.
func Excluded(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{TypeMeta: n.TypeMeta, ObjectMeta: n.ObjectMeta, Spec: n.Spec, Status: n.Status}
	out.Labels = maps.Clone(n.Labels)
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.Labels[ExcludeLabel] = "true"
	return out
}

// Included is the counterpart of [Excluded]: a copy without the label.
func Included(n *corev1.Node) *corev1.Node {
	out := Excluded(n)
	delete(out.Labels, ExcludeLabel)
	return out
}

// LabelRemoves reports whether a rule that selects nodes by their labels selects this one, and would no longer do so
// once it bears the exclude label: then the label is a lever.
func LabelRemoves(n *corev1.Node, selects func(*corev1.Node) bool) bool {
	return selects(Included(n)) && !selects(Excluded(n))
}
