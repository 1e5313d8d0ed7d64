package bench

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/apiproxy"
)

// throttling answers evictions as priority and fairness does when it rejects: 429, no cause, Retry-After. It begins after
// some evictions went through, and ends by itself as long after as it asked to wait.
type throttling struct {
	after int
	retry time.Duration

	mu    sync.Mutex
	seen  int
	since time.Time // of the first rejection
}

func (s *throttling) answer(w http.ResponseWriter, r *http.Request) bool {
	if !evicts(r.Method, r.URL.Path) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen++
	if s.seen <= s.after {
		return false
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if time.Since(s.since) >= s.retry {
		return false
	}
	w.Header().Set("Retry-After", "3")
	w.Header().Set("X-Kubernetes-PF-FlowSchema-UID", "00000000-0000-0000-0000-000000000001")
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write([]byte("Too many requests, please try again later.\n"))
	return true
}

func evicts(method, path string) bool {
	return method == http.MethodPost && strings.HasSuffix(path, "/eviction")
}

// TestThrottled: when the API server rejects one eviction for its load, no further one is sent until it asked for, by
// nobody; then the drain goes on and ends well.
func TestThrottled(t *testing.T) {
	n := newFullNode(t, 60)
	p := through(t, whole(t))
	s := &throttling{after: 10, retry: 3 * time.Second}
	p.Answer(s.answer)
	c, output := run(t, p.Config(), safedrain, n.name)
	if c.Code != 0 {
		t.Errorf("exit code %d, want 0\n%s", c.Code, output)
	}
	n.wantEmpty()
	rejected, sent := 0, []time.Time{s.since} // since the first rejection
	for _, r := range p.Requests() {
		if r.Code == http.StatusTooManyRequests {
			rejected++
		}
		if evicts(r.Method, r.Path) && r.Began.After(s.since) {
			sent = append(sent, r.Began)
		}
	}
	slices.SortFunc(sent, time.Time.Compare)
	// What was sent before the answer arrived, however late that was, is no disobedience.
	early := 0
	for early+1 < len(sent) && sent[early+1].Sub(sent[early]) < s.retry-slack {
		early++
	}
	if s.since.IsZero() || rejected == 0 {
		t.Fatalf("nothing was rejected: %d evictions", s.seen)
	}
	if early > atOnce || early+1 == len(sent) {
		t.Errorf("%d evictions were sent before there was a pause of the %s that the API server asked for", early, s.retry)
	}
	if rejected > atOnce {
		t.Errorf("%d evictions were rejected, want no more than may be under way at once", rejected)
	}
	t.Logf("%d evictions in all, %d rejected, %.1f s", p.Count(func(r *apiproxy.Request) bool { return evicts(r.Method, r.Path) }), rejected, seconds(c.Took))
}

// slack is by how much two requests may arrive nearer to each other than they were sent.
const slack = 100 * time.Millisecond
