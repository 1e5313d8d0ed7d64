package drain

import (
	"math/rand/v2"
	"time"
)

// How long to wait before the same pod is tried again.
const (
	heldWait     = 5 * time.Second  // at least, for a budget
	heldMaxWait  = 15 * time.Second // at most by our own backoff
	deniedWait   = time.Second      // first, for a webhook
	deniedMax    = 5 * time.Second
	passingWait  = 500 * time.Millisecond // first, for a failure that may pass
	passingMax   = 30 * time.Second
	passingFor   = 10 * time.Minute // how long in a row, where no timeout says otherwise
	throttleWait = time.Second      // at least, for everybody
)

// retryAfter is the wait before the next try, given how many in a row had this answer: what the server asks for or our own backoff, the
// longer one. Jitter only adds.
func retryAfter(a answer, tries int) time.Duration {
	var wait time.Duration
	switch a.kind {
	case answerHeld:
		wait = heldWait
		if tries > 12 {
			wait = min(heldWait*time.Duration(tries-11), heldMaxWait)
		}
	case answerDenied, answerTerminating:
		wait = doubled(deniedWait, tries, deniedMax)
	default:
		wait = doubled(passingWait, tries, passingMax)
	}
	return jitter(max(wait, a.after))
}

func doubled(first time.Duration, tries int, most time.Duration) time.Duration {
	for ; tries > 1 && first < most; tries-- {
		first *= 2
	}
	return min(first, most)
}

func jitter(d time.Duration) time.Duration {
	return d + time.Duration(rand.Int64N(int64(d)/10+1)) //nolint:gosec // jitter, not a secret
}
