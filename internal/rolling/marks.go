package rolling

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
)

// TakenOver says that another process works at a node of the roll, or has done so since this one looked.
type TakenOver struct {
	Node   string
	Roll   string // "": somebody removed the mark
	Holder string
	Step   Step
}

func (e *TakenOver) Error() string {
	if e.Roll == "" {
		return fmt.Sprintf("somebody removed the annotation %s while the roll was at work", Annotation)
	}
	return fmt.Sprintf("roll %s of %s, another process, has it: %s", e.Roll, e.Holder, e.Step)
}

// marks reads and writes the marks of nodes. Every write says what has to stand there, and fails when something else does.
type marks struct{ nodes claim.Nodes }

// markTries bounds the tries of one write; markWait is between two that failed for a reason that may pass.
const (
	markTries = 8
	markWait  = time.Second
)

// nodePage is how many nodes one LIST returns.
const nodePage = 500

// read returns those of the nodes that are there, by name.
func (m marks) read(ctx context.Context, names []string) (map[string]*corev1.Node, error) {
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
	}
	out := map[string]*corev1.Node{}
	for opts := (metav1.ListOptions{Limit: nodePage}); ; {
		page, err := m.nodes.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list the nodes: %w", err)
		}
		for i := range page.Items {
			if n := &page.Items[i]; wanted[n.Name] {
				out[n.Name] = n
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return out, nil
		}
	}
}

// begin writes the first mark of this process on a node in place of the one it has; it fails with *TakenOver when the node
// got another one since it was read.
func (m marks) begin(ctx context.Context, node *corev1.Node, mark *Mark) error {
	was, had := node.Annotations[Annotation]
	for range markTries {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion, "annotations": map[string]any{Annotation: mark.String()},
		}})
		if err != nil {
			return fmt.Errorf("encode the mark of node %q: %w", node.Name, err)
		}
		_, err = m.nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: claim.FieldManager})
		if !apierrors.IsConflict(err) {
			return wrapNode(node.Name, "mark", err)
		}
		name := node.Name
		if node, err = m.nodes.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return wrapNode(name, "read", err)
		}
		if now, has := node.Annotations[Annotation]; now != was || has != had {
			return takenOver(node)
		}
	}
	return fmt.Errorf("mark node %q: it changed %d times in a row under the patch; run the command again", node.Name, markTries)
}

// replace writes a mark in place of this process's own, or removes it where the new one is nil.
func (m marks) replace(ctx context.Context, name, old string, mark *Mark) error {
	const path = "/metadata/annotations/safedrain.dev~1roll"
	ops := []map[string]any{{"op": "test", "path": path, "value": old}, {"op": "remove", "path": path}}
	if mark != nil {
		ops[1] = map[string]any{"op": "replace", "path": path, "value": mark.String()}
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		return fmt.Errorf("encode the mark of node %q: %w", name, err)
	}
	for try := 1; ; try++ {
		_, err = m.nodes.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: claim.FieldManager})
		if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
			return wrapNode(name, "mark", err)
		}
		if apierrors.IsInvalid(err) { // another value stands there: perhaps ours, of a try whose answer was lost
			return m.lost(ctx, name, mark, err)
		}
		if try == markTries || apierrors.IsForbidden(err) {
			return wrapNode(name, "mark", err)
		}
		if err := wait(ctx, markWait); err != nil {
			return wrapNode(name, "mark", err)
		}
	}
}

// lost says whose mark stands in place of the one that this process wrote.
func (m marks) lost(ctx context.Context, name string, mark *Mark, cause error) error {
	node, err := m.nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return wrapNode(name, "read", err)
	}
	now, has := node.Annotations[Annotation]
	switch {
	case mark == nil && !has, mark != nil && now == mark.String():
		return nil
	case mark != nil && has && sameRun(now, mark):
		return wrapNode(name, "mark", cause)
	}
	return takenOver(node)
}

func sameRun(value string, mark *Mark) bool {
	var now Mark
	return json.Unmarshal([]byte(value), &now) == nil && now.Run == mark.Run
}

func takenOver(node *corev1.Node) error {
	mark, err := markOf(node)
	switch {
	case err != nil:
		return err
	case mark == nil:
		return &TakenOver{Node: node.Name}
	}
	return &TakenOver{Node: node.Name, Roll: mark.Roll, Holder: mark.Holder, Step: mark.Step}
}

func wrapNode(name, verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s node %q: %w", verb, name, err)
}

// wait pauses, or less when ctx ends, and then says why.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
