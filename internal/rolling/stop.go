package rolling

import "sync"

// stopper says that nothing new is to be begun, and why. What is under way ends in order.
type stopper struct {
	mu     sync.Mutex
	reason error
	signal bool
	done   chan struct{}
}

func newStopper() *stopper { return &stopper{done: make(chan struct{})} }

// end stops with a reason; only the first one counts.
func (s *stopper) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == nil {
		s.reason = err
		close(s.done)
	}
}

func (s *stopper) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// interrupted reports whether a signal has come, be it after another reason to stop.
func (s *stopper) interrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signal
}

// follow stops at the first signal; the returned function ends that.
func (s *stopper) follow(soft <-chan struct{}) func() {
	quit, done := make(chan struct{}), make(chan struct{})
	note := func() {
		s.mu.Lock()
		s.signal = true
		s.mu.Unlock()
		s.end(errInterrupted)
	}
	select {
	case <-soft:
		note() // one that came before the roll
	default:
	}
	go func() {
		defer close(done)
		select {
		case <-soft:
			note()
		case <-quit:
		}
	}()
	return func() { close(quit); <-done }
}
