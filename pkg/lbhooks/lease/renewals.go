package lease

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Renewals remembers when it last saw something renewed, by our own clock: the times that an object states are of its
// writer's clock, which need not agree with ours.
type Renewals struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	seen map[string]sighting
}

// sighting is the last renewal that was seen, and when.
type sighting struct {
	stated time.Time
	at     time.Time // zero until a change was seen
}

// NewRenewals returns an empty memory.
func NewRenewals(clk clock.PassiveClock) *Renewals {
	return &Renewals{clock: clk, seen: map[string]sighting{}}
}

// Seen takes note of the time that an object states, and reports whether that was seen to move on within a duration. The
// first look at an object sees nothing move.
func (r *Renewals) Seen(object string, stated time.Time, within time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	last, known := r.seen[object]
	switch {
	case !known:
		last = sighting{stated: stated}
	case stated.After(last.stated):
		last = sighting{stated: stated, at: now}
	case stated.Before(last.stated):
		last = sighting{stated: stated} // written anew, by an object of the same name or a clock that was set back
	}
	r.seen[object] = last
	return !last.at.IsZero() && now.Sub(last.at) <= within
}
