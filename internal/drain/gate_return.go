package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
)

// ReturnOptions are the end of a [Runner.Withdraw] whose node stays after all.
type ReturnOptions struct {
	Node string
	// Closing is how long an eviction that was let go may still take to be carried out. So long nobody is let go any more
	// and the node stays out; then its endpoints are counted.
	Closing     time.Duration
	WaitTimeout time.Duration // for pods that are coming, as in RestoreOptions
	// Leaving says why a node, read after that, is to stay out after all; "" when it may return. It must not be nil.
	Leaving func(*corev1.Node) string
}

// Reopened says that a node was on its way back into rotation and is leaving again. It is out, as it was before.
type Reopened struct {
	Node string
	Why  string
}

func (e *Reopened) Error() string { return fmt.Sprintf("node %q stays out: %s", e.Node, e.Why) }

// Return undoes a withdrawal of this run. The claim is put into phase closing, in which nobody is let go any more; once
// every eviction that was let go before is over, the endpoints are counted again, and what the claim says was set is undone
// as [Runner.Uncordon] does it, but for a cordon that is not this run's.
//
// The claim is gone when everything is undone, else it stays, ended, for the next call. Errors are *StaysOut, *Reopened,
// *claim.LostTo when another run holds the node, or the API's.
func (r *Runner) Return(ctx context.Context, opts ReturnOptions) (Restored, error) {
	w := &restoring{
		Runner: r, name: opts.Node, opts: RestoreOptions{WaitTimeout: opts.WaitTimeout}, stop: newStopper(),
		out: Restored{Node: opts.Node},
	}
	d := &run{Runner: r, stop: w.stop}
	defer d.obeySoft()()
	held, err := r.claimer().Close(ctx, opts.Node)
	if err != nil || held == nil {
		return w.out, err
	}
	w.held = held
	err = w.closing(ctx, opts)
	if err == nil {
		err = w.held.Update(ctx, func(c *claim.Claim, s *claim.State) {
			claim.Uncordon(c, s)
			for name, was := range c.Services {
				c.Services[name] = claim.Service{Hook: was.Hook} // no longer out for certain, whatever comes next
			}
		})
	}
	if err != nil {
		return w.out, w.endOn(ctx, err)
	}
	w.schedulable = r.Clock.Now()
	return w.out, w.finish(ctx)
}

// closing waits until no eviction that was let go can still be carried out, and looks whether the node is to leave after
// all; then the claim is as it was.
func (w *restoring) closing(ctx context.Context, opts ReturnOptions) error {
	for left := opts.Closing; left > 0; left -= claim.RenewEvery {
		if err := w.stop.pause(ctx, w.Clock, min(left, claim.RenewEvery)); err != nil {
			return err
		}
		if err := w.renew(ctx); err != nil {
			return err
		}
	}
	if err := w.held.Refresh(ctx); err != nil {
		return err
	}
	why := opts.Leaving(w.held.Node())
	if why == "" {
		return nil
	}
	phase := w.held.Was.Phase
	if phase == claim.Closing {
		phase = claim.Withdrawn
	}
	err := w.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Phase = phase })
	return errors.Join(&Reopened{Node: w.name, Why: why}, err)
}
