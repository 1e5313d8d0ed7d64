package experiments

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
)

// hazard is a fault on its way: injected at its moment, healed once.
type hazard struct {
	fault *Fault
	scene *scene
	note  func(format string, args ...any)

	mu       sync.Mutex
	injected bool
	undo     func(context.Context) error // nil once it is put right
	err      error
	over     bool
}

// await injects the fault when its moment has come, and heals it after its time.
func (h *hazard) await(ctx context.Context) {
	at := until(ctx, 20*time.Millisecond, h.due)
	if at.IsZero() {
		return
	}
	h.inject(ctx)
	if h.fault.Heals > 0 && pause(ctx, h.fault.Heals) == nil {
		h.keep(h.putRight(ctx))
	}
}

// due reports whether the moment has come: the label is there, or the claim has a proof.
func (h *hazard) due(ctx context.Context) (bool, error) {
	node, err := h.scene.lab.Client.CoreV1().Nodes().Get(ctx, h.scene.node, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	value, claimed := node.Annotations[claim.Annotation]
	if h.fault.When == WhileSettling {
		return strings.Contains(value, `"proofAt"`), nil
	}
	return claimed && (node.Labels[corev1.LabelNodeExcludeBalancers] == "true" || strings.Contains(value, "withdrawn")), nil
}

func (h *hazard) inject(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return
	}
	undo, err := h.fault.Inject(ctx, h.scene)
	h.injected, h.undo, h.err = true, undo, errors.Join(h.err, err)
	h.note("fault: %s", h.fault.Name)
}

// putRight undoes the fault once.
func (h *hazard) putRight(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	undo := h.undo
	h.undo = nil
	if undo == nil {
		return nil
	}
	h.note("fault is put right")
	return undo(ctx)
}

func (h *hazard) keep(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = errors.Join(h.err, err)
}

// heal ends the hazard. A run in which the fault never happened is discarded.
func (h *hazard) heal(ctx context.Context) error {
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	h.keep(h.putRight(ctx))
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.injected {
		return fmt.Errorf("%w: the moment of fault %s never came", errDiscard, h.fault.Name)
	}
	return h.err
}
