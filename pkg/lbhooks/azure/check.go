package azure

import (
	"context"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Check reads what a proof would read, for a few Services, and says what stands against it.
func (h *Hook) Check(ctx context.Context, all []lbhooks.Target) []lbhooks.Missing {
	return lbhooks.TryProofs[*Forbidden](ctx, h, all, "pools and health", "safedrain hooks azure --iam prints the least role")
}
