package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/gate/leftovers"
	"github.com/safedrain/safedrain/pkg/guard"
)

// gateState is what `uncordon --all-ours` finds of a gate, and what becomes of what it left.
type gateState struct {
	*leftovers.Gate
	Cleared *leftovers.Cleared // nil: nothing was looked for
}

// findGate looks for a gate. Whoever may not look is told so; most clusters have none.
func (r *uncordonRun) findGate(ctx context.Context) (*gateState, error) {
	c, err := r.app.kube.clients()
	if err != nil {
		return nil, err
	}
	gate, err := leftovers.Find(ctx, c, time.Now())
	switch {
	case apierrors.IsForbidden(err):
		r.app.warn(fmt.Sprintf("whether a gate is or was installed here is not known: %s; %s rbac --all-ours prints the permissions it needs", oneLine(err.Error()), r.app.name))
		return nil, nil
	case err != nil:
		return nil, &connectError{kube: r.app.kube, err: err}
	}
	return &gateState{Gate: gate}, nil
}

// running reports whether the gate runs, and so puts back its own nodes and sets its marks again.
func (g *gateState) running() bool { return g != nil && g.Running != "" }

// leaves reports whether a node is left to the gate that runs.
func (g *gateState) leaves(n *corev1.Node) bool {
	if !g.running() {
		return false
	}
	c, err := claim.Of(n)
	return err == nil && c != nil && c.Holder == guard.GateHolder
}

// clearGate takes away what a gate left that runs no more, and says on stderr what it did, or why it did not. It reports
// whether all is gone that was to go.
func (r *uncordonRun) clearGate(ctx context.Context, g *gateState, dryRun bool) bool {
	switch {
	case g == nil:
		return true
	case g.running():
		r.app.warn(fmt.Sprintf("a gate runs, led by %s (lease %s): its nodes, marks and hooks are left to it; uninstall it, then repeat", g.Running, g.Lease))
		return true
	}
	c, err := r.app.kube.clients()
	if err == nil {
		g.Cleared, err = leftovers.Clear(ctx, c, g.Gate, dryRun)
	}
	if g.Cleared != nil && !g.Cleared.Nothing() {
		fmt.Fprintln(escaping{r.app.streams.ErrOut}, clearedText(g.Cleared, dryRun))
	}
	if len(g.Webhooks) > 0 {
		r.app.warn(fmt.Sprintf("the gate's webhooks are still registered, and nobody leads it: kubectl delete %s", strings.Join(g.Webhooks, " ")))
	}
	if err != nil {
		fmt.Fprintf(escaping{r.app.streams.ErrOut}, "error: what the gate left is not all gone: %s; repeat when that is mended\n", r.clearError(err))
	}
	return err == nil
}

// clearError explains what stood in the way. Nobody who drains needs what clearing does.
func (r *uncordonRun) clearError(err error) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("%s; %s rbac --all-ours prints the permissions it needs", oneLine(err.Error()), r.app.name)
	}
	return r.app.explain(err)
}

// clearedText says what was taken away.
func clearedText(c *leftovers.Cleared, dryRun bool) string {
	var parts []string
	for _, p := range []struct {
		n          int
		what, noun string
	}{{c.Pods, "marks of ", "pod"}, {c.Nodes, "annotations of ", "node"}, {c.Machines, "hooks of ", "machine"}} {
		if p.n > 0 {
			parts = append(parts, p.what+count(p.n, p.noun))
		}
	}
	parts = append(parts, c.Objects...)
	text := "left by the gate and gone now: " + strings.Join(parts, ", ")
	if dryRun {
		text += " (dry run)"
	}
	return text
}
