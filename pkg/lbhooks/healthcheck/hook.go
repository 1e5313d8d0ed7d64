// Package healthcheck is the hook health-check: a balancer that probes healthCheckNodePort, and that nobody can ask.
//
// A user names it; it never matches by itself. The port turns to 503 when the last ready endpoint of the node starts to
// terminate, while kube-proxy goes on serving through it: so a pod that outlives the check takes the node out. The port
// proves nothing before an eviction; afterwards Unhealthy failures in a row, and as long again, are the best there is.
package healthcheck

import (
	"context"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// Name of the hook.
const Name = "health-check"

// Hook is the hook health-check.
type Hook struct {
	http *http.Client

	mu        sync.Mutex
	baselines map[string]bool // by namespace/service/node: the port said 200 before the withdrawal
}

var (
	_ lbhooks.Hook       = (*Hook)(nil)
	_ lbhooks.Assertable = (*Hook)(nil)
	_ lbhooks.Paced      = (*Hook)(nil)
)

// New returns the hook. A nil client stands for one that uses no proxy, keeps no connection and follows no redirect.
func New(client *http.Client) *Hook {
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Hook{http: &own, baselines: map[string]bool{}}
}

// Describe names the hook. It needs a way from here to the nodes' health check port, and nothing of the API.
func (h *Hook) Describe() lbhooks.Description { return lbhooks.Description{Name: Name} }

// Match never matches: nothing in the objects tells which balancer honours the port.
func (h *Hook) Match(*corev1.Service, lbhooks.Objects) (lbhooks.Rotation, bool) {
	return lbhooks.Rotation{}, false
}

// Pace observes as often as the balancer does, and takes as many failures as it does.
func (h *Hook) Pace(t lbhooks.Target) (poll time.Duration, stable int) {
	hc := check(t)
	return hc.Interval, hc.Unhealthy
}

// Withdraw does nothing: the node leaves when its pods start to terminate.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the node is back when it has a ready endpoint.
func (h *Hook) Restore(ctx context.Context, t lbhooks.Target) error {
	h.mu.Lock()
	delete(h.baselines, baselineKey(t))
	h.mu.Unlock()
	return ctx.Err()
}

// check returns the balancer's check; the node tells the provider. Annotations that cannot be read make the rotation
// broken long before; here they only mean that nothing is known.
func check(t lbhooks.Target) lbhooks.HealthCheck {
	hc, err := timing.Of(t.Service, []*corev1.Node{t.Node})
	if err != nil {
		hc = timing.Assumed()
	}
	return *hc
}
