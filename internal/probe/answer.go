package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// unreachable are the errors by which the network says that a node cannot be reached.
var unreachable = []error{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN}

// refused are the errors of a connection that something on the way turned down.
var refused = []error{syscall.ECONNREFUSED, syscall.ECONNRESET}

// failed reads why no connection came about. What failed on this machine is no observation.
func failed(err error) Seen {
	var timeout net.Error
	switch {
	case isAny(err, refused):
		return Seen{Answer: guard.AnswerRefused}
	case isAny(err, unreachable):
		return Seen{Answer: guard.AnswerUnreachable, Detail: cause(err)}
	case errors.Is(err, context.Canceled):
		return Seen{Detail: "not probed: interrupted"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return Seen{Answer: guard.AnswerBlackhole}
	}
	return Seen{Detail: "the probe failed here: " + cause(err)}
}

func isAny(err error, of []error) bool {
	for _, e := range of {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// cause is the text of the system's own error, without the addresses around it.
func cause(err error) string {
	var code syscall.Errno
	if errors.As(err, &code) {
		return code.Error()
	}
	return err.Error()
}

// health asks a health check port as a balancer does.
func (p *Prober) health(ctx context.Context, t *Target) Seen {
	connected := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.Address.String()+"/healthz", http.NoBody)
	if err != nil {
		return Seen{Detail: fmt.Sprintf("the probe failed here: %v", err)}
	}
	resp, err := p.http.Do(req)
	switch {
	case err != nil && connected:
		return brokenOff(err)
	case err != nil:
		return failed(err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing was written
	raw, err := io.ReadAll(io.LimitReader(resp.Body, lbhooks.MaxHealthBody))
	if err != nil {
		return brokenOff(err)
	}
	health, detail := lbhooks.ReadHealth(types.NamespacedName{Namespace: t.Service.Namespace, Name: t.Service.Name}, resp.StatusCode, raw)
	switch health {
	case lbhooks.HealthPassing:
		return Seen{Answer: guard.AnswerHealthy, Detail: detail}
	case lbhooks.HealthFailing:
		return Seen{Answer: guard.AnswerUnhealthy, Detail: detail}
	}
	return Seen{Answer: guard.AnswerStrange, Detail: detail}
}

// brokenOff reads an error after the connection stood: something listens and does not answer as a proxy does.
func brokenOff(err error) Seen {
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return Seen{Detail: "not probed: interrupted"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return Seen{Answer: guard.AnswerBlackhole, Detail: "accepts the connection and does not answer"}
	}
	return Seen{Answer: guard.AnswerStrange, Detail: "does not answer as a health check port does"}
}
