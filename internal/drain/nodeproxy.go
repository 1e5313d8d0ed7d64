package drain

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// proxyCall bounds one question to a health check port.
const proxyCall = time.Second

// nodeProxy is what can be known of the kube-proxy of one node: whether it has rules for the pods that a Service has there.
// A balancer that follows the endpoints learns of a new one from the same EndpointSlice as kube-proxy does, which writes
// its rules at most once a second: what arrives in between gets no answer.
//
// kube-proxy tells by healthCheckNodePort, which it updates after its rules. Where that cannot be asked, time has to do.
type nodeProxy struct {
	*Runner
	usable map[guard.Key]time.Time // since when a Service was seen with a usable endpoint on the node
}

// knows reports whether kube-proxy on the target's node has rules for the usable endpoint that the Service has there. detail
// says why that may be relied on, or what is missing. others are nodes whose port should answer.
func (p *nodeProxy) knows(ctx context.Context, t lbhooks.Target, others []*corev1.Node) (known bool, detail string, err error) {
	key := guard.Key{Namespace: t.Service.Namespace, Name: t.Service.Name}
	since, seen := p.usable[key]
	if !seen {
		since = p.Clock.Now()
		p.usable[key] = since
	}
	sight, detail, err := p.ask(ctx, t, others)
	switch {
	case err != nil:
		return false, "", err
	case sight == lbhooks.SightPassing:
		return true, "kube-proxy knows its pod: " + detail, nil
	case sight == lbhooks.SightFailing:
		return false, fmt.Sprintf("kube-proxy on %s does not know its pod: %s", t.Node.Name, detail), nil
	case p.Clock.Since(since) < proxyLag:
		return false, fmt.Sprintf("kube-proxy on %s has %s to learn of its pod: %s", t.Node.Name, proxyLag, detail), nil
	}
	return true, fmt.Sprintf("kube-proxy had %s to learn of its pod: %s", proxyLag, detail), nil
}

// forget says that the Service has no usable endpoint on the node.
func (p *nodeProxy) forget(service guard.Key) { delete(p.usable, service) }

// ask looks at the node's health check port. Failing also stands for a port that does not answer while another node's
// does: kube-proxy is not there yet, or the node cannot be reached. Any other sight means that nobody can tell from here.
func (p *nodeProxy) ask(ctx context.Context, t lbhooks.Target, others []*corev1.Node) (lbhooks.Sight, string, error) {
	hook, _ := p.Hooks.Hook(portHook)
	witness, ok := hook.(lbhooks.CheckWitness)
	switch {
	case t.Service.Spec.HealthCheckNodePort == 0:
		return lbhooks.SightUnreachable, "the Service has no health check port", nil
	case !ok:
		return lbhooks.SightUnreachable, "nobody looks at its health check port", nil
	}
	sight, detail, err := p.lookAt(ctx, witness, t)
	if err != nil || sight == lbhooks.SightPassing || sight == lbhooks.SightFailing {
		return sight, detail, err
	}
	answers, faults := make([]bool, len(others)), make([]error, len(others))
	var group sync.WaitGroup
	for i, node := range others {
		group.Go(func() {
			faults[i] = safely.Call(func() error {
				s, _, err := p.lookAt(ctx, witness, lbhooks.Target{Service: t.Service, Node: node})
				answers[i] = err == nil && (s == lbhooks.SightPassing || s == lbhooks.SightFailing)
				return nil
			})
		})
	}
	group.Wait()
	if err := errors.Join(faults...); err != nil {
		return lbhooks.SightUnreachable, "", err
	}
	for i, answered := range answers {
		if answered {
			return lbhooks.SightFailing, fmt.Sprintf("%s, and that of %s answers", detail, others[i].Name), ctx.Err()
		}
	}
	return lbhooks.SightUnreachable, detail, ctx.Err()
}

// lookAt asks one port. A call that is not over in time is silence.
func (p *nodeProxy) lookAt(ctx context.Context, witness lbhooks.CheckWitness, t lbhooks.Target) (lbhooks.Sight, string, error) {
	call, cancel := context.WithTimeout(ctx, proxyCall)
	defer cancel()
	sight, detail, err := witness.Look(call, t)
	if err != nil && ctx.Err() == nil {
		port := t.Service.Spec.HealthCheckNodePort
		return lbhooks.SightUnreachable, fmt.Sprintf("its health check port %d on %s does not answer from here", port, t.Node.Name), nil
	}
	return sight, detail, err
}
