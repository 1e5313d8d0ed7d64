package claim

import corev1 "k8s.io/api/core/v1"

// Saw takes in a version of the node that a watch brought, and reports what stands against going on as [Held.Check] does.
// A version older than one that was seen already says nothing.
func (h *Held) Saw(node *corev1.Node) error {
	h.see(node)
	if h.Node() != node {
		return nil
	}
	return h.inspect(node)
}
