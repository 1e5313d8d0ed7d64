package rolling

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// blocked is the outcome of a part that guard does not let begin for the moment.
const blocked = "blocked"

// timed does a part of the node's turn and notes it for the report: drain, run, return or cover. A drain that guard refuses
// again and again is noted once.
func (n *node) timed(ctx context.Context, name string, work func(context.Context) error) error {
	s := guard.Step{Name: name, Node: n.name, Started: n.Clock.Now().UTC()}
	err := work(ctx)
	s.Ended, s.Outcome = n.Clock.Now().UTC(), partOutcome(err)
	if err != nil {
		s.Evidence = err.Error()
	}
	if last := len(n.parts) - 1; last >= 0 && s.Outcome == blocked && n.parts[last].Outcome == blocked {
		s.Started, n.parts = n.parts[last].Started, n.parts[:last]
	}
	n.parts = append(n.parts, s)
	return err
}

func partOutcome(err error) string {
	var (
		later   *notNow
		end     *badEnd
		failed  *CommandError
		missing *NotCovered
	)
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &later):
		return blocked
	case errors.Is(err, errInterrupted), errors.Is(err, errStopped), errors.Is(err, context.Canceled),
		errors.As(err, &end) && end.outcome == drain.Interrupted:
		return "interrupted"
	case errors.As(err, &missing), errors.As(err, &failed) && failed.TimedOut:
		return "timedOut"
	}
	return "failed"
}

// parts are what this run did, in order.
func (d *roll) parts() []guard.Step {
	out := []guard.Step{}
	for _, name := range d.order {
		out = append(out, d.nodes[name].parts...)
	}
	slices.SortStableFunc(out, func(a, b guard.Step) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Node, b.Node)) })
	return out
}
