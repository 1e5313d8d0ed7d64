package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Poll calls check until it is done, and returns its last state in the error when the time is over. An error of check is
// a state like any other: the API server may be away for a moment. What it says because the time is over is none.
func Poll(ctx context.Context, timeout time.Duration, what string, check func(context.Context) (done bool, state string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	last := errors.New("never looked")
	for {
		done, state, err := check(ctx)
		switch {
		case done && err == nil:
			return nil
		case ctx.Err() != nil: // cut off
		case err != nil:
			last = err
		default:
			last = errors.New(state)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, timeout, last)
		case <-tick.C:
		}
	}
}
