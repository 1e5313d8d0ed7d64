package claim

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Close takes up the claim of this run on a node for its undoing: its phase is closing from then on, and nobody is let go
// under it any more. It returns nil when there is no claim, and *LostTo when it is another run's.
func (c *Claimer) Close(ctx context.Context, name string) (*Held, error) {
	h := newHeld(c, name, nil)
	for range conflictTries {
		node, err := h.read(ctx)
		if err != nil {
			return nil, err
		}
		was, err := Of(node)
		switch {
		case err != nil || was == nil:
			return nil, err
		case was.Run != c.Run:
			return nil, &LostTo{Run: was.Run, Holder: was.Holder, Nodes: was.Nodes}
		}
		h.Was, h.before, h.AlreadyCordoned = was, stateOf(node), node.Spec.Unschedulable
		next := was.clone()
		next.Phase, next.Renewed, next.Ended = Closing, c.now(), nil
		text := next.String()
		after, err := apply(ctx, c.Nodes, node, h.before, &text)
		if err == nil {
			h.see(after)
			return h, nil
		}
		if !apierrors.IsConflict(err) {
			return nil, fmt.Errorf("patch node %q: %w", name, err)
		}
	}
	return nil, fmt.Errorf("patch node %q: it changed %d times in a row under the patch", name, conflictTries)
}

// Refresh reads the node anew, and fails with *TakenOver when its claim is not this run's any more.
func (h *Held) Refresh(ctx context.Context) error {
	node, err := h.read(ctx)
	if err != nil {
		return err
	}
	_, err = h.mine(node)
	return err
}
