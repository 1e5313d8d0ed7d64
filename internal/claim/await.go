package claim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// contested returns the claim on a node when it is another run's and may not be overwritten.
func (a *attempt) contested(node *corev1.Node) (*Claim, error) {
	c, err := Of(node)
	if err != nil || c == nil || c.Run == a.c.Run || a.mayTake(node.Annotations[Annotation], c) {
		return nil, err
	}
	return c, nil
}

// settle waits, before the ticket, until no node bears a claim of a live run: claims that stand still for [DeadAfter] are
// free, a claim that changes is a live run's and wins.
func (a *attempt) settle(ctx context.Context) error {
	watched := map[string]string{} // node -> annotation as first seen
	for _, name := range a.names {
		c, err := a.contested(a.nodes[name])
		if err != nil {
			return err
		}
		if c != nil {
			watched[name] = a.nodes[name].Annotations[Annotation]
			a.tell(name, c)
		}
	}
	for start := a.c.Clock.Now(); len(watched) > 0 && a.c.Clock.Since(start) < DeadAfter; {
		if err := a.c.pause(ctx, lookEvery); err != nil {
			return err
		}
		if err := a.look(ctx, watched); err != nil {
			return err
		}
	}
	for _, text := range watched {
		a.free[text] = true
	}
	return nil
}

// look reads the watched nodes once and forgets those whose claim went away.
func (a *attempt) look(ctx context.Context, watched map[string]string) error {
	for _, name := range a.names {
		text, ok := watched[name]
		if !ok {
			continue
		}
		if err := a.reread(ctx, name); err != nil {
			return err
		}
		c, err := a.contested(a.nodes[name])
		if err != nil {
			return err
		}
		if c == nil {
			delete(watched, name)
		} else if a.nodes[name].Annotations[Annotation] != text {
			return &LostTo{Run: c.Run, Holder: c.Holder, Nodes: c.Nodes}
		}
	}
	return nil
}

// await waits until a node may be claimed. Before the ticket any live claim of another wins. After it, a claim in phase
// claimed is a later ticket: it will see this run's and go away, or stand still and be free.
func (a *attempt) await(ctx context.Context, name string, phase Phase) error {
	start, since, text := a.c.Clock.Now(), a.c.Clock.Now(), ""
	for {
		c, err := a.contested(a.nodes[name])
		if err != nil || c == nil {
			return err
		}
		now := a.nodes[name].Annotations[Annotation]
		if now != text {
			text, since = now, a.c.Clock.Now()
		}
		later := phase == Granted && c.Phase == Claimed
		if !later || a.c.Clock.Since(start) > 2*DeadAfter {
			return &LostTo{Run: c.Run, Holder: c.Holder, Nodes: c.Nodes}
		}
		if a.c.Clock.Since(since) >= DeadAfter {
			a.free[text] = true
			return nil
		}
		if err := a.c.pause(ctx, time.Second); err != nil {
			return err
		}
		if err := a.reread(ctx, name); err != nil {
			return err
		}
	}
}

func (a *attempt) reread(ctx context.Context, name string) error {
	node, err := a.c.Nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %q: %w", name, err)
	}
	a.nodes[name] = node
	return nil
}

func (a *attempt) tell(node string, c *Claim) {
	if a.c.Waiting != nil {
		a.c.Waiting(node, *c)
	}
}
