package drain

import (
	"context"
	"fmt"
	"time"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// withdraw sets the label, where some balancer of the node goes by it, and records in the claim what the hooks are about
// to be called for. One patch does both, before any hook is called, so that a run that dies leaves nothing unrecorded.
func (n *nodeRun) withdraw(ctx context.Context, departures []*departure) error {
	label, barred := false, ""
	var hooks []*departure
	for _, dep := range departures {
		switch {
		case dep.way == wayForced && dep.removal == guard.RemovalLabel:
			barred = dep.key.String()
		case dep.way == wayForced:
		case dep.removal == guard.RemovalLabel:
			label = true
		case dep.removal == guard.RemovalHook && dep.hook != nil:
			hooks = append(hooks, dep)
		}
	}
	now := n.Clock.Now()
	for _, dep := range departures {
		if dep.way == waySettle {
			dep.began(now, dep.settle)
		} else {
			dep.began(now, dep.timeout)
		}
	}
	if barred != "" && label {
		n.emit(Warned{Text: fmt.Sprintf("node/%s is not labelled: the label would take the last node of %s out of its balancer", n.name, barred)})
		label = false
	}
	free := n.free(departures)
	if !label && len(hooks) == 0 {
		return n.noteFree(ctx, free)
	}
	end := n.step("withdraw", n.name, "")
	err := n.change(ctx, func(ctx context.Context) error {
		return n.held.Update(ctx, func(c *claim.Claim, s *claim.State) {
			if label {
				claim.Exclude(c, s)
			}
			for _, dep := range hooks {
				c.Add(claim.HookSet(dep.hookName, dep.key.String()), "", false)
			}
			for _, dep := range departures {
				if dep.way != wayForced {
					note(c, dep)
				}
			}
			addFree(c, free)
			c.Phase = claim.Withdrawn
		})
	})
	end(err, "")
	return err
}

// note records a withdrawal in the claim, not proven yet.
func note(c *claim.Claim, dep *departure) {
	if c.Services == nil {
		c.Services = map[string]claim.Service{}
	}
	c.Services[dep.key.String()] = claim.Service{
		Hook: dep.hookName, Since: dep.sinceTime, Until: dep.untilTime, Unproven: dep.way == waySettle,
	}
}

// release records that the pods of a Service may go.
func release(c *claim.Claim, dep *departure) {
	s, noted := c.Services[dep.key.String()]
	if !noted {
		note(c, dep)
		s = c.Services[dep.key.String()]
	}
	s.Released = true
	c.Services[dep.key.String()] = s
}

// began says since when the node is leaving a Service, and how long that may take; 0: nobody knows.
func (s *departure) began(at time.Time, within time.Duration) {
	if s.sinceTime == nil {
		since := at.UTC().Truncate(time.Second)
		s.sinceTime = &since
	}
	s.until(at, within)
}

func (s *departure) until(at time.Time, within time.Duration) {
	s.untilTime = nil
	if within > 0 {
		until := at.Add(within).UTC().Truncate(time.Second)
		s.untilTime = &until
	}
}

// labelled reports whether the node bears the exclude label of this tool or of somebody else.
func (n *nodeRun) labelled() bool { return n.held.Node().Labels[lbhooks.ExcludeLabel] == "true" }
