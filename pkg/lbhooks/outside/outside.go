// Package outside adds to a hook whose balancer moves an address between nodes a look from outside: connections to the
// addresses of the Service, from where safedrain runs.
//
// The node that takes an address over announces that, and whoever misses it goes on sending to the old one. A connection
// that fails shows that something is wrong on the way from here. One that succeeds shows no more than that somebody
// answers: the old node serves until its pods are evicted. So a look can hold a proof back, and never makes one.
package outside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// optionProbe is how many looks in a row have to succeed.
const optionProbe = "probe"

// patience is how long one connection is waited for; no answer within it is a failure.
const patience = 2 * time.Second

// Options are those of a hook that may be wrapped.
func Options() []lbhooks.Option {
	return []lbhooks.Option{{
		Name: optionProbe, Kind: lbhooks.OptionNumber,
		Usage: "connect to the Service's addresses from here, and take a node for out only when that succeeded this many times in a row (default 0: no connection)",
	}}
}

// dialer makes a connection; net.Dialer does.
type dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Wrap returns the hook with a look from outside if the options ask for one, else the hook itself. The hook implements
// none of the optional interfaces of lbhooks.
func Wrap(hook lbhooks.Hook, options lbhooks.Options) lbhooks.Hook {
	times := options.Number(optionProbe, 0)
	if times == 0 {
		return hook
	}
	return &watched{Hook: hook, times: times, dialer: &net.Dialer{}}
}

// watched is a hook whose proofs wait for connections.
type watched struct {
	lbhooks.Hook

	times  int
	dialer dialer
}

var _ lbhooks.Paced = (*watched)(nil)

// Pace observes about once a second, until as many looks in a row succeeded as were asked for.
func (w *watched) Pace(lbhooks.Target) (poll time.Duration, stable int) {
	return lbhooks.DefaultMaxPoll, w.times
}

// Prove makes the hook's own observation, and one look where that says that the node is out.
func (w *watched) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	p, err := w.Hook.Prove(ctx, t)
	if err != nil || !p.Out {
		return p, err
	}
	seen, answers := w.look(ctx, t.Service)
	if err := ctx.Err(); err != nil {
		return lbhooks.Proof{}, err
	}
	if !answers {
		return lbhooks.Proof{Evidence: p.Evidence + "; but " + seen}, nil
	}
	p.Evidence += "; " + seen
	return p, nil
}

// look connects to each address of the Service and says what answered, or which did not. Where there is nothing to connect
// to, nothing stands against a proof.
func (w *watched) look(ctx context.Context, svc *corev1.Service) (seen string, answers bool) {
	port := tcpPort(svc)
	if port == 0 {
		return "no TCP port to connect to from here", true
	}
	var answer []string
	for _, addr := range lbhooks.Addresses(svc) {
		place := net.JoinHostPort(addr.String(), strconv.Itoa(port))
		if err := w.connect(ctx, place); err != nil {
			return fmt.Sprintf("%s does not answer from here: %v", place, err), false
		}
		answer = append(answer, place)
	}
	if len(answer) == 0 {
		return "no address to connect to from here", true
	}
	return strings.Join(answer, ", ") + " answers from here", true
}

func (w *watched) connect(ctx context.Context, place string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := w.dialer.DialContext(ctx, "tcp", place)
	var op *net.OpError
	switch {
	case err == nil:
		return conn.Close()
	case ctx.Err() != nil:
		return fmt.Errorf("silent for %s", patience)
	case errors.As(err, &op):
		return op.Err
	}
	return err
}

// tcpPort is the first TCP port of a Service, 0 when there is none.
func tcpPort(svc *corev1.Service) int {
	for i := range svc.Spec.Ports {
		if p := &svc.Spec.Ports[i]; p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
			return int(p.Port)
		}
	}
	return 0
}
