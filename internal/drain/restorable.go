package drain

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// restorable fails before anything changes when a node cannot be read, or when a hook that withdrew one of them is not
// configured in this run: nobody could put the node back.
func (r *Runner) restorable(ctx context.Context, names []string) error {
	var wrong []error
	for _, name := range names {
		node, err := r.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("nothing changed: read node %q: %w", name, err)
		}
		wrong = append(wrong, r.hooksMissing(ctx, node)...)
	}
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("nothing changed: %w", err)
	}
	return nil
}

// hooksMissing lists the withdrawals of a node that cannot be undone here. A claim that cannot be read is left to whoever
// takes it up.
func (r *Runner) hooksMissing(ctx context.Context, node *corev1.Node) []error {
	c, err := claim.Of(node)
	if err != nil || c == nil {
		return nil
	}
	var wrong []error
	for _, set := range c.Set {
		hookName, service, ok := claim.ParseHookSet(set)
		if !ok {
			continue
		}
		why := r.hookWorks(hookName)
		if why == nil || r.serviceGone(ctx, node.Name, service) {
			continue
		}
		wrong = append(wrong, fmt.Errorf("node %q was taken out of %s for %s, and nothing here can put it back: %w; "+
			"kubectl uncordon makes it schedulable and leaves it out", node.Name, hookName, service, why))
	}
	return wrong
}

// hookWorks returns nil, or why a hook that withdrew a node cannot put it back in this run.
func (r *Runner) hookWorks(name string) error {
	hook, ok := r.Hooks.Hook(name)
	if !ok {
		return fmt.Errorf("there is no hook %q here: give the --config that has it", name)
	}
	if c, ok := hook.(lbhooks.Configurable); ok {
		return c.Configured()
	}
	return nil
}

// serviceGone reports whether a Service is known to be gone; then there is nothing to put back.
func (r *Runner) serviceGone(ctx context.Context, node, service string) bool {
	snapshot, err := r.Load(ctx, []string{node})
	if err != nil {
		return false
	}
	_, there := snapshot.RawService(keyOf(service))
	return !there
}
