package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

// rollbackWait bounds how long a rollback waits for pods that terminate.
const rollbackWait = 2 * time.Minute

// awaitEnds waits while a Service that the node is out of has nothing there but pods that terminate: a balancer that goes
// by what still serves would send to the node again, until they are gone. When the time is over, or ctx ends, the error says
// so, and the node has to stay out.
func (n *nodeRun) awaitEnds(ctx context.Context) error {
	deadline := newStopper()
	defer deadline.after(n.Clock, rollbackWait, errWaited)()
	started, renewed := n.Clock.Now(), n.Clock.Now()
	for delay := returnPoll; ; delay = min(delay+delay/2, returnMaxPoll) {
		service, hook, err := n.ending(ctx)
		if err != nil || service == "" {
			return err
		}
		waits := "its pods on " + n.name + " terminate"
		n.emit(ReturnPending{Node: n.name, Service: service, Hook: hook, For: waits, Elapsed: n.Clock.Since(started), Timeout: rollbackWait})
		if err := deadline.pause(ctx, n.Clock, delay); errors.Is(err, errWaited) {
			return fmt.Errorf("node %q stays out: %s: %s, after %s", n.name, service, waits, rollbackWait)
		} else if err != nil {
			return fmt.Errorf("node %q stays out: %s: %s: %w", n.name, service, waits, err)
		}
		if n.Clock.Since(renewed) >= claim.RenewEvery {
			renewed = n.Clock.Now()
			if err := n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Renewed = n.timeNow() }); err != nil {
				return err
			}
		}
	}
}

// ending finds a Service that the node is out of by this claim, and whose endpoints there all terminate; "" when there is none.
func (n *nodeRun) ending(ctx context.Context) (service, hook string, err error) {
	snapshot, err := n.Load(ctx, []string{n.name})
	if err != nil {
		return "", "", err
	}
	c := n.held.Claim()
	for facts := range snapshot.Index(n.Hooks, []string{n.name}).ServicesOn(n.name) {
		r := &facts.Rotation
		out := c.Has(claim.HookSet(r.Hook, facts.Key.String())) || r.Removal == guard.RemovalLabel && c.Has(claim.SetLabel)
		if !out || !facts.External || asksKubeProxy(r) {
			continue
		}
		cover := guard.Cover(facts)
		state, _ := cover.State(n.name)
		if state == guard.StateTerminating && (r.FollowsServing || !r.Follows) {
			return facts.Key.String(), r.Hook, nil
		}
	}
	return "", "", nil
}
