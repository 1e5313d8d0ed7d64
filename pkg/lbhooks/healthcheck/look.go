package healthcheck

import (
	"context"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var _ lbhooks.CheckWitness = (*Hook)(nil)

// Look asks the node's port once. A refused connection counts as odd: nothing listens, so no balancer's check passed there.
func (h *Hook) Look(ctx context.Context, t lbhooks.Target) (lbhooks.Sight, string, error) {
	o, err := h.probe(ctx, t)
	if err != nil {
		return lbhooks.SightUnreachable, "", err
	}
	switch o.Answer {
	case Passing:
		return lbhooks.SightPassing, o.Detail, nil
	case Failing:
		return lbhooks.SightFailing, o.Detail, nil
	case Silent:
		return lbhooks.SightUnreachable, o.Detail, nil
	}
	return lbhooks.SightOdd, o.Detail, nil
}
