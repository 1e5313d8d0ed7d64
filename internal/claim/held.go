package claim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Held is a claim of this run on one node. Its methods may be called from several goroutines; their changes share patches.
type Held struct {
	c *Claimer
	// Was is the claim of an earlier run that was taken up, nil when there was none.
	Was *Claim
	// AlreadyCordoned says that the node was unschedulable when this run claimed it.
	AlreadyCordoned bool

	turn chan struct{} // held by the goroutine that writes

	mu    sync.Mutex
	node  *corev1.Node // as last seen
	queue []*write     // changes that wait to be written
	name  string
	// what stood there before the claim of this run, for a ticket that lost
	before       State
	beforeClaim  *string
	mineCordoned bool
}

func newHeld(c *Claimer, name string, node *corev1.Node) *Held {
	return &Held{c: c, name: name, node: node, turn: make(chan struct{}, 1)}
}

// Name is the name of the node.
func (h *Held) Name() string { return h.name }

// Node returns the node as it was last seen. Callers do not change it.
func (h *Held) Node() *corev1.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node
}

// Claim returns a copy of the claim as it was last seen; the zero value when it was removed.
func (h *Held) Claim() Claim {
	c, err := Of(h.Node())
	if err != nil || c == nil {
		return Claim{}
	}
	return *c
}

// see keeps the newest version of the node: answers may come in another order than the writes.
func (h *Held) see(node *corev1.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.node == nil || !older(node, h.node) {
		h.node = node
	}
}

// older compares resourceVersions, which are increasing numbers; where one is not, nothing is older.
func older(a, b *corev1.Node) bool {
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX == nil && errY == nil && x < y
}

// mine returns the claim on the node if it is this run's.
func (h *Held) mine(node *corev1.Node) (*Claim, error) {
	c, err := Of(node)
	switch {
	case err != nil:
		return nil, err
	case c == nil:
		return nil, &TakenOver{Node: h.name}
	case c.Run != h.c.Run:
		return nil, &TakenOver{Node: h.name, Run: c.Run, Holder: c.Holder}
	}
	return c, nil
}

// Update changes the claim and what it sets, in one patch that only succeeds while the claim is this run's. change may
// be called several times, on what the node has then. A node that is gone is a NotFound error.
func (h *Held) Update(ctx context.Context, change func(*Claim, *State)) error {
	return h.write(ctx, func(_ *corev1.Node, c *Claim, s *State) *Claim {
		change(c, s)
		return c
	})
}

func (h *Held) read(ctx context.Context) (*corev1.Node, error) {
	node, err := h.c.Nodes.Get(ctx, h.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %q: %w", h.name, err)
	}
	h.see(node)
	return node, nil
}

// Check reads the node and reports what stands against going on: *TakenOver, *Changed, or NotFound when it is deleted.
func (h *Held) Check(ctx context.Context) error {
	node, err := h.read(ctx)
	if err != nil {
		return err
	}
	return h.inspect(node)
}

// inspect compares a node with what its claim says was set.
func (h *Held) inspect(node *corev1.Node) error {
	c, err := h.mine(node)
	if err != nil {
		return err
	}
	if !node.Spec.Unschedulable {
		return &Changed{Node: h.name, What: "was uncordoned", Who: lastWriter(node)}
	}
	if c.Has(SetLabel) && node.Labels[lbhooks.ExcludeLabel] != "true" {
		return &Changed{Node: h.name, What: "lost the label " + lbhooks.ExcludeLabel + "=true", Who: lastWriter(node)}
	}
	return nil
}

// Renew shows whoever watches the claim that the run lives, and checks the node as [Held.Check] does.
func (h *Held) Renew(ctx context.Context) error {
	err := h.Update(ctx, func(c *Claim, _ *State) { c.Renewed = h.c.now() })
	if err != nil {
		return err
	}
	return h.inspect(h.Node())
}

// Finish is Update for the end of a drain: it is written only if, in that very state of the node, nothing stands against
// it; else the error is that of [Held.Check].
func (h *Held) Finish(ctx context.Context, change func(*Claim)) error {
	var against error
	err := h.write(ctx, func(node *corev1.Node, c *Claim, _ *State) *Claim {
		if against = h.inspect(node); against == nil {
			change(c)
		}
		return c
	})
	return errors.Join(against, err)
}

// End says in the claim that the run is over and keeps everything else.
func (h *Held) End(ctx context.Context) error {
	return h.Update(ctx, func(c *Claim, _ *State) { c.Ended = h.c.now() })
}

// Cordon makes the node unschedulable and records it, unless it is already.
func cordon(c *Claim, s *State) {
	if s.Cordoned {
		return
	}
	s.Cordoned = true
	c.Add(SetUnschedulable, "", false)
}

// Exclude sets the exclude label to "true" and records what stood there, unless it is "true" already.
func Exclude(c *Claim, s *State) {
	value := "true"
	switch {
	case s.Label == nil:
		c.Add(SetLabel, "", false)
	case *s.Label != value:
		c.Add(SetLabel, *s.Label, true)
	default:
		return
	}
	s.Label = &value
}

// Include undoes [Exclude] if the label is still as this tool wrote it.
func Include(c *Claim, s *State) {
	if !c.Has(SetLabel) {
		return
	}
	if s.Label != nil && *s.Label == "true" {
		s.Label = nil
		if prev, had := c.Prev[SetLabel]; had {
			s.Label = &prev
		}
	}
	c.Remove(SetLabel)
}

// Uncordon makes the node schedulable if the claim says that it was made unschedulable under it.
func Uncordon(c *Claim, s *State) {
	if c.Has(SetUnschedulable) {
		s.Cordoned = false
		c.Remove(SetUnschedulable)
	}
}

// Undo removes from the node whatever the claim says was set on it, and the claim. What hooks set must be undone before.
// It returns what it removed.
func (h *Held) Undo(ctx context.Context) ([]string, error) {
	var removed []string
	err := h.write(ctx, func(_ *corev1.Node, c *Claim, s *State) *Claim {
		removed = c.clone().Set
		Include(c, s)
		Uncordon(c, s)
		return nil
	})
	return removed, err
}

// Clear removes the claim and nothing else.
func (h *Held) Clear(ctx context.Context) error {
	return h.write(ctx, func(*corev1.Node, *Claim, *State) *Claim { return nil })
}

// back puts the node to what stood there before this run claimed it: for a ticket that lost.
func (h *Held) back(ctx context.Context) error {
	node := h.Node()
	for range conflictTries {
		if _, err := h.mine(node); err != nil {
			return err
		}
		state := stateOf(node)
		if h.mineCordoned {
			state.Cordoned = h.before.Cordoned
		}
		after, err := apply(ctx, h.c.Nodes, node, state, h.beforeClaim)
		if err == nil {
			h.see(after)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("undo the claim on node %q: %w", h.name, err)
		}
		if node, err = h.read(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("undo the claim on node %q: it changed %d times in a row under the patch", h.name, conflictTries)
}
