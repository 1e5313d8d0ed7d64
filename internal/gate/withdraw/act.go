package withdraw

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/drain"
)

// runner returns what carries out a run on a node.
func (c *Controller) runner(node *corev1.Node, emit func(drain.Event)) *drain.Runner {
	r := c.Runner()
	r.RunID, r.Holder, r.Emit = runOf(node), Holder, emit
	return r
}

// withdraw takes a node out. An error means that it is to be tried again.
func (c *Controller) withdraw(ctx context.Context, node *corev1.Node, why string) error {
	t := &teller{c: c, node: node, why: why}
	result := c.runner(node, t.tell).Withdraw(ctx, drain.WithdrawOptions{
		Node: node.Name, HookTimeout: c.Options.HookTimeout, AcceptUnproven: c.Options.AcceptUnproven,
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var (
		held    *drain.HeldByOthers
		refusal *drain.Refusal
		lost    *claim.LostTo
		notOut  *drain.NotOut
	)
	err := result.Err
	switch {
	case err == nil:
		c.outcome(t.outcome())
		if c.Machines != nil {
			return c.Machines.Release(ctx, node)
		}
		return nil
	case errors.As(err, &held):
		c.event(node, "held", corev1.EventTypeNormal, ReasonLeft, "%v", held)
		return nil
	case errors.As(err, &lost):
		c.outcome("refused")
		c.event(node, "refused", corev1.EventTypeWarning, ReasonRefused, "%s empties it: not yet: %v", why, lost)
	case errors.As(err, &refusal):
		c.outcome("refused")
		c.event(node, "refused", corev1.EventTypeWarning, ReasonRefused, "%s empties it, but it cannot leave: %s", why,
			strings.Join(refusal.Reasons(), "; "))
	case errors.As(err, &notOut):
		c.outcome("unproven")
		for _, n := range allOf[*drain.NotOut](err) {
			c.event(node, n.Service, corev1.EventTypeWarning, ReasonUnproven, "%s not proven out of %s: %v; evictions of its pods wait; "+
				"override: annotate node %s safedrain.dev/gate=off", n.Service, n.Hook, n.Cause, node.Name)
		}
	default:
		c.outcome("failed")
	}
	return err
}

// bringBack returns a node that stays after all.
func (c *Controller) bringBack(ctx context.Context, node *corev1.Node) error {
	restored, err := c.runner(node, func(drain.Event) {}).Return(ctx, drain.ReturnOptions{
		Node: node.Name, Closing: c.Options.Closing, WaitTimeout: c.Options.WaitTimeout, Leaving: c.leavesAgain,
	})
	var (
		reopened *drain.Reopened
		stays    *drain.StaysOut
		lost     *claim.LostTo
	)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &reopened), errors.As(err, &lost), apierrors.IsNotFound(err):
		return nil // the node's next change says what to do
	case errors.As(err, &stays):
		c.event(node, "return", corev1.EventTypeWarning, ReasonWaits, "%s", strings.Join(stays.What, "; "))
		return err
	case err != nil:
		c.outcome("failed")
		return err
	}
	if len(restored.Warnings) > 0 {
		c.event(node, "return", corev1.EventTypeWarning, ReasonWaits, "%s", strings.Join(restored.Warnings, "; "))
	}
	return c.returned(ctx, node)
}

// returned looks whether nothing is left of a withdrawal.
func (c *Controller) returned(ctx context.Context, node *corev1.Node) error {
	now, err := c.Client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if held, err := claim.Of(now); err != nil || held != nil {
		return fmt.Errorf("node %q is still out for some Services", node.Name)
	}
	c.outcome("returned")
	c.event(node, "return", corev1.EventTypeNormal, ReasonReturned, "back in rotation")
	c.forget(node.Name)
	return c.tidy(ctx, now)
}

// leavesAgain says why a node that is on its way back is to stay out after all.
func (c *Controller) leavesAgain(node *corev1.Node) string {
	held, err := claim.Of(node)
	if err != nil || held == nil {
		return ""
	}
	if node.Spec.Unschedulable && !held.Has(claim.SetUnschedulable) {
		return "it is cordoned"
	}
	if who := c.leaving(node, held); who != "" {
		return who + " empties it"
	}
	return ""
}

// tidy removes the note of a refusal that does not count any more.
func (c *Controller) tidy(ctx context.Context, node *corev1.Node) error {
	noted, ok := node.Annotations[claim.AnnotationRefused]
	if !ok || c.untilForgotten(node) > 0 && node.Spec.Unschedulable {
		return nil
	}
	patch := fmt.Sprintf(`[{"op":"test","path":"/metadata/annotations/%[1]s","value":%[2]q},{"op":"remove","path":"/metadata/annotations/%[1]s"}]`,
		strings.ReplaceAll(claim.AnnotationRefused, "/", "~1"), noted)
	_, err := c.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{FieldManager: claim.FieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil // another one is noted by now, or none
	}
	return err
}

func (c *Controller) outcome(what string) {
	if c.Outcome != nil {
		c.Outcome(what)
	}
}

// allOf lists the errors of one type in a tree of joined errors.
func allOf[E error](err error) []E {
	var out []E
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			out = append(out, allOf[E](part)...)
		}
		return out
	}
	var one E
	if errors.As(err, &one) {
		out = append(out, one)
	}
	return out
}
