package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Answer is what a node's health check port said of a Service.
type Answer string

// Passing: 200, of this Service, with an endpoint. Failing: 503. Refused: nothing listens. Strange: anything that is not to
// be believed, such as another Service's name or an empty 200. Silent: no answer in time, which is never taken for a 503.
const (
	Passing Answer = Answer(lbhooks.HealthPassing)
	Failing Answer = Answer(lbhooks.HealthFailing)
	Refused Answer = "refused"
	Strange Answer = Answer(lbhooks.HealthStrange)
	Silent  Answer = "silent"
)

// Observation is one probe.
type Observation struct {
	Answer Answer
	Detail string // one line, for people
}

// minTimeout keeps a probe from a machine far away from being cut off by a balancer's short timeout.
const minTimeout = 3 * time.Second

// probe asks the node's health check port once.
func (h *Hook) probe(ctx context.Context, t lbhooks.Target) (Observation, error) {
	addresses := lbhooks.NodeAddresses(t.Node)
	if len(addresses) == 0 {
		return Observation{Answer: Strange, Detail: "node " + t.Node.Name + " has no address to probe"}, nil
	}
	host := net.JoinHostPort(addresses[0].String(), strconv.Itoa(int(t.Service.Spec.HealthCheckNodePort)))
	deadline, cancel := context.WithTimeout(ctx, max(check(t).Timeout, minTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(deadline, http.MethodGet, "http://"+host+"/healthz", http.NoBody)
	if err != nil {
		return Observation{}, fmt.Errorf("%s: %w", Name, err)
	}
	resp, err := h.http.Do(req)
	if err != nil {
		h.http.CloseIdleConnections() // net/http goes on connecting when nobody waits for it any more
		if ctx.Err() != nil {
			return Observation{}, fmt.Errorf("%s: probing %s: %w", Name, host, ctx.Err())
		}
		return failed(host, err), nil
	}
	defer resp.Body.Close() //nolint:errcheck // nothing was written
	raw, err := io.ReadAll(io.LimitReader(resp.Body, lbhooks.MaxHealthBody))
	if err != nil {
		return Observation{Answer: Silent, Detail: host + " broke off its answer"}, nil
	}
	o := judge(t.Service, resp.StatusCode, raw)
	o.Detail = host + " " + o.Detail
	return o, nil
}

// failed tells a refused connection from silence.
func failed(host string, err error) Observation {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return Observation{Answer: Refused, Detail: host + " refuses connections"}
	}
	return Observation{Answer: Silent, Detail: host + " does not answer from here"}
}

// judge reads an answer.
func judge(svc *corev1.Service, code int, raw []byte) Observation {
	health, detail := lbhooks.ReadHealth(types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, code, raw)
	return Observation{Answer(health), detail}
}
