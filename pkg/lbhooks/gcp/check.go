package gcp

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// checked is how many Services Check looks at.
const checked = 5

// Check reads what a proof would read, for a few Services, and says what stands against it.
func (h *Hook) Check(ctx context.Context, all []lbhooks.Target) []lbhooks.Missing {
	var out []lbhooks.Missing
	for i := range min(checked, len(all)) {
		_, err := h.Prove(ctx, all[i*len(all)/min(checked, len(all))])
		if err == nil || ctx.Err() != nil {
			continue
		}
		m := lbhooks.Missing{What: strings.TrimPrefix(err.Error(), Name+": "), Why: "membership and health"}
		var denied *Forbidden
		if errors.As(err, &denied) {
			m = lbhooks.Missing{What: denied.Error(), Why: "the role is in docs/iam/gcp.yaml", Forbidden: true}
		}
		m.Optional = !errors.Is(err, lbhooks.ErrUnavailable)
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}
