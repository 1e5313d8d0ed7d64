package claim

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// FieldManager is the name under which safedrain writes.
const FieldManager = "safedrain"

// Nodes is the part of the API that claims need; the typed node client satisfies it.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string) (*corev1.Node, error)
}

// apply writes a state and an annotation (nil removes it) in one merge patch that fails with a conflict when the node
// changed since it was read. It returns the node itself when there is nothing to write.
func apply(ctx context.Context, nodes Nodes, node *corev1.Node, state State, annotation *string) (*corev1.Node, error) {
	patch, err := mergePatch(node, state, annotation)
	if err != nil || patch == nil {
		return node, err
	}
	return nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
}

// mergePatch returns nil when the node is as wanted.
func mergePatch(node *corev1.Node, state State, annotation *string) ([]byte, error) {
	meta := map[string]any{}
	if old, had := node.Annotations[Annotation]; annotation == nil && had {
		meta["annotations"] = map[string]any{Annotation: nil}
	} else if annotation != nil && (!had || old != *annotation) {
		meta["annotations"] = map[string]any{Annotation: *annotation}
	}
	was := stateOf(node)
	switch {
	case state.Label == nil && was.Label != nil:
		meta["labels"] = map[string]any{lbhooks.ExcludeLabel: nil}
	case state.Label != nil && (was.Label == nil || *was.Label != *state.Label):
		meta["labels"] = map[string]any{lbhooks.ExcludeLabel: *state.Label}
	}
	patch := map[string]any{}
	if state.Cordoned != was.Cordoned {
		value := any(nil)
		if state.Cordoned {
			value = true
		}
		patch["spec"] = map[string]any{"unschedulable": value}
	}
	if len(meta) == 0 && len(patch) == 0 {
		return nil, nil
	}
	meta["resourceVersion"] = node.ResourceVersion
	patch["metadata"] = meta
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode the patch of node %q: %w", node.Name, err)
	}
	return data, nil
}
