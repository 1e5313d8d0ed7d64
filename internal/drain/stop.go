package drain

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// stopper ends work softly: calls in flight are finished, nothing new is begun. The context of a call ends it hard.
type stopper struct {
	mu   sync.Mutex
	err  error
	done chan struct{}
}

func newStopper() *stopper { return &stopper{done: make(chan struct{})} }

// end stops with a reason; only the first one counts.
func (s *stopper) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}

// Done is closed once the work is to stop.
func (s *stopper) Done() <-chan struct{} { return s.done }

// Err is the reason to stop, nil while there is none.
func (s *stopper) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// follow ends s when parent ends, until the returned function is called.
func (s *stopper) follow(parent *stopper) func() {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-parent.Done():
			s.end(parent.Err())
		case <-quit:
		}
	}()
	return func() { close(quit); <-done }
}

// after ends s with err when d has passed; 0 is never.
func (s *stopper) after(clk clock.WithTicker, d time.Duration, err error) func() {
	if d <= 0 {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	timer := clk.NewTimer(d)
	go func() {
		defer close(done)
		defer timer.Stop()
		select {
		case <-timer.C():
			s.end(err)
		case <-quit:
		}
	}()
	return func() { close(quit); <-done }
}

// context is a child of ctx that also ends, with its reason as the cause, when s does.
func (s *stopper) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-s.Done():
			cancel(s.Err())
		case <-quit:
		}
	}()
	return ctx, func() { cancel(context.Canceled); close(quit); <-done }
}

// pause waits for d, or less when ctx or s ends, and then says why.
func (s *stopper) pause(ctx context.Context, clk clock.WithTicker, d time.Duration) error {
	if d <= 0 {
		return s.Err()
	}
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-s.Done():
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
