package aws

import (
	"context"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Check reads what a proof would read, for a few Services, and says what stands against it. Whether targets may be
// deregistered and registered cannot be tried without doing it.
func (h *Hook) Check(ctx context.Context, all []lbhooks.Target) []lbhooks.Missing {
	return lbhooks.TryProofs[*Forbidden](ctx, h, all, "target health", "safedrain hooks aws --iam prints the least policy")
}
