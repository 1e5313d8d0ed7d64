package e2e

import (
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// nodeState is everything of a Node that a drain can set.
type nodeState struct {
	Labels, Annotations map[string]string
	Spec                corev1.NodeSpec
}

func stateOf(n *corev1.Node) nodeState {
	return nodeState{Labels: n.Labels, Annotations: n.Annotations, Spec: n.Spec}
}

// wantNodeAsBefore compares two states of a node, of which the former was read at rest.
func wantNodeAsBefore(e *controlplane.Env, before, after *corev1.Node) {
	e.Helper()
	if diff := cmp.Diff(stateOf(before), stateOf(after)); diff != "" {
		e.Errorf("node %s is not as it was before (-before +after)\n%s", before.Name, diff)
	}
}
