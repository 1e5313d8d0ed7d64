package lbhooks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/utils/clock"
)

// Defaults of [WaitOptions]. Each time between two observations is a quarter longer than the one before, so that a proof is
// noticed within a fifth of the time that it took to come; the slowest poll stays below a second.
const (
	DefaultPoll    = 100 * time.Millisecond
	DefaultMaxPoll = 900 * time.Millisecond
	DefaultCall    = 10 * time.Second
)

// WaitOptions are how long and how patiently [Wait] observes. Zero values stand for the defaults.
type WaitOptions struct {
	Timeout time.Duration // of the whole wait; 0: as long as the context lives
	Poll    time.Duration // first time between observations, growing up to MaxPoll, less up to a fifth of jitter
	MaxPoll time.Duration
	Stable  int           // observations in a row that must say out; 0: the hook's pace, or one
	Call    time.Duration // deadline of one observation
	// Pending is called with every observation that did not end the wait; it must not block for long. It may be nil.
	Pending func(Pending)
}

// Pending is an observation that did not end a wait.
type Pending struct {
	Elapsed time.Duration
	Proof   Proof // the observation; zero when Err is not nil
	Err     error // a failure that may pass
	InARow  int   // observations in a row that said out, this one included
}

// Wait observes the node until the hook proves that it left the rotation. It ends with
//   - the proof, once Stable observations in a row say out;
//   - an error that matches [ErrUnavailable], at once, when the hook cannot work;
//   - an error that matches [ErrNotProven] when the timeout passes; errors that may pass are retried until then;
//   - the error of the context when that ends first.
//
// With an error it returns the last observation that did not fail.
func Wait(ctx context.Context, clk clock.Clock, hook Hook, t Target, opts WaitOptions) (Proof, error) {
	w := &waiter{clock: clk, hook: hook, target: t, opts: opts.withDefaults(hook, t), started: clk.Now()}
	w.delay = w.opts.Poll
	for {
		done, err := w.observe(ctx)
		if done || err != nil {
			return w.last, err
		}
		if err := w.sleep(ctx); err != nil {
			return w.last, err
		}
	}
}

func (o WaitOptions) withDefaults(hook Hook, t Target) WaitOptions {
	if paced, ok := hook.(Paced); ok && o.Stable == 0 {
		o.Poll, o.Stable = paced.Pace(t)
		o.MaxPoll = o.Poll
	}
	if o.Poll <= 0 {
		o.Poll = DefaultPoll
	}
	if o.MaxPoll <= 0 {
		o.MaxPoll = DefaultMaxPoll
	}
	o.MaxPoll = max(o.MaxPoll, o.Poll)
	o.Stable = max(o.Stable, 1)
	if o.Call <= 0 {
		o.Call = DefaultCall
	}
	return o
}

// waiter is the state of one Wait.
type waiter struct {
	clock   clock.Clock
	hook    Hook
	target  Target
	opts    WaitOptions
	started time.Time
	delay   time.Duration
	last    Proof
	lastErr error
	inARow  int
}

// observe makes one observation; done says that it completed the proof.
func (w *waiter) observe(ctx context.Context) (done bool, err error) {
	proof, err := w.prove(ctx)
	if ctx.Err() != nil && (err != nil || !proof.Out) {
		return false, w.ended(ctx)
	}
	if errors.Is(err, ErrUnavailable) {
		return false, err
	}
	w.lastErr = err
	switch {
	case err != nil:
		w.inARow, proof = 0, Proof{}
	case !proof.Out:
		w.inARow, w.last = 0, proof
	default:
		w.inARow, w.last = w.inARow+1, proof
	}
	if w.inARow >= w.opts.Stable {
		return true, nil
	}
	elapsed := w.clock.Since(w.started)
	if w.opts.Pending != nil {
		w.opts.Pending(Pending{Elapsed: elapsed, Proof: proof, Err: err, InARow: w.inARow})
	}
	if w.opts.Timeout > 0 && elapsed >= w.opts.Timeout {
		return false, w.notProven(elapsed)
	}
	return false, nil
}

// prove calls the hook with a deadline of its own, so that one call that hangs does not eat the whole wait.
func (w *waiter) prove(ctx context.Context) (Proof, error) {
	call := w.opts.Call
	if w.opts.Timeout > 0 {
		call = max(min(call, w.opts.Timeout-w.clock.Since(w.started)), w.opts.Poll)
	}
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	return w.hook.Prove(ctx, w.target)
}

// sleep waits for the next observation; the last one is made when the timeout is reached, not before.
func (w *waiter) sleep(ctx context.Context) error {
	if w.inARow > 0 {
		w.delay = w.opts.Poll
	}
	delay := w.delay - time.Duration(rand.Int64N(int64(w.delay)/5+1)) //nolint:gosec // jitter, not a secret
	if w.opts.Timeout > 0 {
		delay = min(delay, max(w.opts.Timeout-w.clock.Since(w.started), 0))
	}
	w.delay = min(w.delay+w.delay/4, w.opts.MaxPoll)
	timer := w.clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return w.ended(ctx)
	case <-timer.C():
		return nil
	}
}

func (w *waiter) notProven(after time.Duration) error {
	return &NotProvenError{
		Hook: w.hook.Describe().Name, Service: w.target.key(), Node: w.target.Node.Name,
		After: after, Last: w.last, Cause: w.lastErr,
	}
}

// ended says that the context ended the wait, and what was seen last.
func (w *waiter) ended(ctx context.Context) error {
	err := fmt.Errorf("%s: waiting for node %q to leave %s: %w", w.hook.Describe().Name, w.target.Node.Name, w.target.key(), context.Cause(ctx))
	if w.last.Evidence != "" {
		err = fmt.Errorf("%w (last seen: %s)", err, w.last.Evidence)
	}
	return err
}

func (t Target) key() string { return t.Service.Namespace + "/" + t.Service.Name }
