package gcp

import (
	"context"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Check reads what a proof would read, for a few Services, and says what stands against it.
func (h *Hook) Check(ctx context.Context, all []lbhooks.Target) []lbhooks.Missing {
	return lbhooks.TryProofs[*Forbidden](ctx, h, all, "membership and health", "safedrain hooks gcp --iam prints the least role")
}
