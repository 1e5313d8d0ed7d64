package controlplane

import (
	"context"
	"fmt"
	"time"
)

// Poll calls check until it is done, and returns its last state in the error when the time is over. An error of check is
// a state like any other: the API server may be away for a moment.
func Poll(ctx context.Context, timeout time.Duration, what string, check func(context.Context) (done bool, state string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		done, state, err := check(ctx)
		if done && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("%s: not within %s: %w", what, timeout, err)
			}
			return fmt.Errorf("%s: not within %s: %s", what, timeout, state)
		case <-tick.C:
		}
	}
}
