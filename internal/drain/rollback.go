package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// rollback undoes on a node exactly what the claim says was set, and keeps what stood there before. It goes on after the
// first signal, and for a moment after the second.
func (n *nodeRun) rollback(ctx context.Context) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer cancel()
	}
	end := n.step("rollback", n.name, "")
	removed, err := n.undo(ctx)
	if err == nil {
		n.emit(RolledBack{Node: n.name, Removed: removed})
	}
	end(err, "")
	if err != nil {
		return fmt.Errorf("undo what was set on node %q: %w", n.name, err)
	}
	return nil
}

func (n *nodeRun) undo(ctx context.Context) ([]string, error) {
	if err := n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Phase = claim.Closing }); err != nil {
		return nil, ignoreDeleted(err)
	}
	var all []error
	if err := n.lowerRest(ctx); err != nil { // while the node is out of its balancers: its own pod may be the one to go
		all = append(all, err)
	}
	if plan, _ := n.current(); planHolds(plan) {
		if _, err := n.unhold(ctx, newStopper(), n.name, func(text string) { n.emit(Warned{Text: text}) }); err != nil {
			all = append(all, err)
		}
	}
	ending := n.awaitEnds(ctx)
	if ending != nil {
		all = append(all, ending)
	}
	c := n.held.Claim()
	back, removed := []string{}, []string{}
	for _, set := range c.Set {
		hook, service, ok := claim.ParseHookSet(set)
		if !ok || ending != nil {
			continue
		}
		if err := n.callRestore(ctx, hook, service); err != nil {
			all = append(all, err)
			continue
		}
		back = append(back, set)
	}
	if len(all) > 0 {
		// The claim stays, so that uncordon can do the rest; everything else is undone, but what would bring traffic back to
		// pods that end.
		err := n.held.Update(ctx, func(c *claim.Claim, s *claim.State) {
			removed = slices.Clone(back)
			for _, set := range back {
				c.Remove(set)
			}
			if ending == nil {
				claim.Include(c, s)
			}
			claim.Uncordon(c, s)
			c.Ended = n.timeNow()
		})
		return removed, errors.Join(append(all, ignoreDeleted(err))...)
	}
	removed, err := n.held.Undo(ctx)
	return removed, ignoreDeleted(err)
}

func ignoreDeleted(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// callRestore puts the node back into the rotation of one Service by its hook. A Service that is gone has no rotation.
func (n *nodeRun) callRestore(ctx context.Context, hookName, service string) error {
	hook, ok := n.Hooks.Hook(hookName)
	if !ok {
		return fmt.Errorf("put node %q back for %s: this version has no hook %q", n.name, service, hookName)
	}
	_, snapshot := n.current()
	svc, ok := snapshot.RawService(keyOf(service))
	if !ok {
		return nil
	}
	if why := n.mayNotReturn(ctx, keyOf(service)); why != "" {
		return fmt.Errorf("node %q stays out of %s for %s: %s", n.name, hookName, service, why)
	}
	if err := hook.Restore(ctx, lbhooks.Target{Service: svc, Node: n.held.Node()}); err != nil {
		return fmt.Errorf("put node %q back into %s for %s: %w", n.name, hookName, service, err)
	}
	return nil
}

// mayNotReturn says why the node may not be sent to again for a Service: its balancer does not follow the endpoints, and
// the node's are evicted.
func (n *nodeRun) mayNotReturn(ctx context.Context, key guard.Key) string {
	snapshot, err := n.Load(ctx, []string{n.name})
	if err != nil {
		return err.Error()
	}
	facts, ok := snapshot.Index(n.Hooks, []string{n.name}).Service(key)
	if !ok || !facts.External || facts.Rotation.Follows {
		return ""
	}
	cover := guard.Cover(facts)
	if state, _ := cover.State(n.name); state == guard.StateServing {
		return ""
	}
	return "no Ready pod of it is on the node any more"
}

// keyOf is the inverse of guard.Key.String.
func keyOf(name string) guard.Key {
	for i := range name {
		if name[i] == '/' {
			return guard.Key{Namespace: name[:i], Name: name[i+1:]}
		}
	}
	return guard.Key{Name: name}
}
