package claim

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// conflictTries bounds the retries of one patch; each of them reads the node anew.
const conflictTries = 20

// change turns the claim on a node, and what the claim sets, into what is to stand there; nil ends the claim. It may be
// called several times, on what the node has then.
type change func(node *corev1.Node, c *Claim, s *State) *Claim

// write is a change on its way. Of those that wait at the same time one goroutine writes all: a node with many Services
// would have as many patches that conflict with one another.
type write struct {
	change change
	done   chan struct{} // closed when err is the outcome
	err    error
}

// write carries out a change in a patch that only succeeds while the claim is this run's. A node that is gone is a
// NotFound error.
func (h *Held) write(ctx context.Context, c change) error {
	w := &write{change: c, done: make(chan struct{})}
	h.enqueue(w)
	select {
	case <-w.done:
	case h.turn <- struct{}{}:
		h.writeQueued(ctx, w)
		<-h.turn
	case <-ctx.Done():
		if h.dequeue(w) {
			return ctx.Err()
		}
		<-w.done // another goroutine is writing it
	}
	return w.err
}

// writeQueued writes what is queued until the caller's own change has its outcome. Whose turn it is finds its own in the
// queue, if nobody wrote it.
func (h *Held) writeQueued(ctx context.Context, own *write) {
	for !own.over() {
		batch := h.takeQueue()
		written, err := h.patch(ctx, batch)
		mineOnly := err != nil && ctx.Err() != nil // what ended is the caller's patience, not that of the others
		for i, w := range batch {
			if mineOnly && w == own || !mineOnly && i < written {
				w.finish(err)
			} else {
				h.enqueue(w)
			}
		}
	}
}

// patch applies changes in their order, up to one that ends the claim, and says how many those were.
func (h *Held) patch(ctx context.Context, batch []*write) (written int, err error) {
	node, fresh := h.Node(), false
	for range conflictTries {
		c, err := h.mine(node)
		if err != nil {
			return len(batch), err
		}
		state, next := stateOf(node), c.clone()
		written = 0
		for _, w := range batch {
			written++
			if next = w.change(node, next, &state); next == nil {
				break
			}
		}
		var value *string
		if next != nil {
			text := next.String()
			value = &text
		}
		after, err := apply(ctx, h.c.Nodes, node, state, value)
		if err == nil && (after != node || fresh) {
			h.see(after)
			return written, nil
		}
		// With nothing to write nobody has said yet that the claim is still this run's.
		fresh = err == nil
		if err != nil && !apierrors.IsConflict(err) {
			return written, fmt.Errorf("patch node %q: %w", h.name, err)
		}
		if node, err = h.read(ctx); err != nil {
			return written, err
		}
	}
	return written, fmt.Errorf("patch node %q: it changed %d times in a row under the patch; run the command again", h.name, conflictTries)
}

func (w *write) finish(err error) {
	w.err = err
	close(w.done)
}

func (w *write) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (h *Held) enqueue(w *write) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = append(h.queue, w)
}

// dequeue takes a change back, unless it is being written.
func (h *Held) dequeue(w *write) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.queue, w)
	if i >= 0 {
		h.queue = slices.Delete(h.queue, i, i+1)
	}
	return i >= 0
}

func (h *Held) takeQueue() []*write {
	h.mu.Lock()
	defer h.mu.Unlock()
	batch := h.queue
	h.queue = nil
	return batch
}
