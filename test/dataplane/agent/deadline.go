package agent

import (
	"sync"
	"time"
)

// deadline is a point in time that can only come nearer.
type deadline struct {
	mu    sync.Mutex
	at    time.Time // zero when there is none yet
	moved chan struct{}
}

func newDeadline() *deadline { return &deadline{moved: make(chan struct{})} }

// atMost brings the deadline nearer, if it is later than t.
func (d *deadline) atMost(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && !t.Before(d.at) {
		return
	}
	d.at = t
	close(d.moved)
	d.moved = make(chan struct{})
}

// wait waits until done is closed, which it returns as true, or the deadline has come, but at least for the minimum.
func (d *deadline) wait(done <-chan struct{}, minimum time.Duration) bool {
	earliest := time.Now().Add(minimum)
	for {
		d.mu.Lock()
		at, moved := d.at, d.moved
		d.mu.Unlock()
		if at.Before(earliest) {
			at = earliest
		}
		timer := time.NewTimer(time.Until(at))
		select {
		case <-done:
			timer.Stop()
			return true
		case <-timer.C:
			return false
		case <-moved:
			timer.Stop()
		}
	}
}
