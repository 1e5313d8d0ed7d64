package azure

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

// throttle keeps to the pause that Azure asks for: once it answers 429 with a time that is too long to wait for within an
// observation, no call is made before that time has passed. Calls that are not let through count on, whoever makes them.
type throttle struct {
	mu    sync.Mutex
	until time.Time
}

var _ policy.Policy = (*throttle)(nil)

// Do makes the call, unless Azure asked for a pause that is not over.
func (t *throttle) Do(req *policy.Request) (*http.Response, error) {
	if left := t.left(); left > 0 {
		return nil, &throttledError{left}
	}
	answer, err := req.Next()
	if err != nil || answer.StatusCode != http.StatusTooManyRequests {
		return answer, err
	}
	t.mu.Lock()
	t.until = time.Now().Add(retryAfter(answer))
	t.mu.Unlock()
	return answer, nil
}

func (t *throttle) left() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.until)
}

// retryAfter is the pause that an answer asks for, 0 for none. Resource Manager gives it in seconds.
func retryAfter(answer *http.Response) time.Duration {
	seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// throttledError is a call that was not made: Azure asked for a pause.
type throttledError struct{ left time.Duration }

func (e *throttledError) Error() string {
	return fmt.Sprintf("too many calls in this subscription: Azure asks to wait %s more", e.left.Round(time.Second))
}

// NonRetriable tells the SDK to leave it at that.
func (*throttledError) NonRetriable() {}
