package healthcheck

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// probesAtOnce bounds the probes of other nodes.
const probesAtOnce = 16

// Baseline probes the node before anything is withdrawn, and remembers a pass. Without one nothing that the port says
// later counts: a port that never worked must not be taken for a node that left.
func (h *Hook) Baseline(ctx context.Context, t lbhooks.Target) (Observation, error) {
	o, err := h.probe(ctx, t)
	if err == nil && o.Answer == Passing {
		h.mu.Lock()
		h.baselines[baselineKey(t)] = true
		h.mu.Unlock()
	}
	return o, err
}

// Healthy returns the nodes, of those given, whose port passes now, sorted.
func (h *Hook) Healthy(ctx context.Context, svc *corev1.Service, nodes []*corev1.Node) ([]string, error) {
	passes := make([]bool, len(nodes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(probesAtOnce)
	for i, n := range nodes {
		group.Go(func() error {
			o, err := h.probe(ctx, lbhooks.Target{Service: svc, Node: n})
			passes[i] = o.Answer == Passing
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var out []string
	for i, n := range nodes {
		if passes[i] {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Prove makes one observation: the port fails after it had passed. One failure is no removal: [Hook.Pace] asks for as many
// in a row as the balancer does, and the proof's settle time is what the balancer may need on top.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	o, err := h.probe(ctx, t)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	h.mu.Lock()
	passedBefore := h.baselines[baselineKey(t)]
	h.mu.Unlock()
	switch {
	case o.Answer != Failing && o.Answer != Refused:
		return lbhooks.Proof{Evidence: o.Detail}, nil
	case !passedBefore:
		return lbhooks.Proof{Evidence: o.Detail + ", but it was not seen to pass before: that proves nothing"}, nil
	}
	hc := check(t)
	settle := hc.Interval*time.Duration(hc.Unhealthy) + hc.Timeout
	return lbhooks.Proof{
		Out: true, Settle: &settle,
		Evidence: fmt.Sprintf("%s; a balancer that probes every %s drops the node after %d failures", o.Detail, hc.Interval, hc.Unhealthy),
	}, nil
}

func baselineKey(t lbhooks.Target) string {
	return t.Service.Namespace + "/" + t.Service.Name + "/" + t.Node.Name
}
