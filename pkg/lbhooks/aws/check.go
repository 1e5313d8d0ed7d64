package aws

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// checked is how many Services Check looks at: every kind of call comes up within a few, and it stays quick.
const checked = 5

// Check reads what a proof would read, for a few Services, and says what stands against it. Whether targets may be
// deregistered and registered cannot be tried without doing it.
func (h *Hook) Check(ctx context.Context, all []lbhooks.Target) []lbhooks.Missing {
	var out []lbhooks.Missing
	for _, t := range spread(all) {
		_, err := h.Prove(ctx, t)
		if err == nil || ctx.Err() != nil {
			continue
		}
		m := lbhooks.Missing{What: strings.TrimPrefix(err.Error(), Name+": "), Why: "target health"}
		var denied *Forbidden
		if errors.As(err, &denied) {
			m = lbhooks.Missing{What: denied.Error(), Why: "the policy is in docs/iam/aws.json", Forbidden: true}
		}
		m.Optional = !errors.Is(err, lbhooks.ErrUnavailable)
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// spread picks targets from the whole list, as many as are checked.
func spread(all []lbhooks.Target) []lbhooks.Target {
	if len(all) <= checked {
		return all
	}
	var out []lbhooks.Target
	for i := range checked {
		out = append(out, all[i*len(all)/checked])
	}
	return out
}
