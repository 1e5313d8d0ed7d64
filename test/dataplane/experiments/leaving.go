package experiments

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const lookInterval = 100 * time.Millisecond

// leaving is when a balancer stopped sending to a node; zero when it was not seen.
type leaving struct {
	shown    time.Time // by what the balancer says
	forwards time.Time // by what its data plane does
}

// A balancer may let its data plane be looked at: which nodes it sends to, or which node it is for the client.
type (
	forwarder interface {
		Forwards(ctx context.Context, svc *corev1.Service) ([]string, error)
	}
	neighbour interface {
		Neighbour(ctx context.Context, svc *corev1.Service) (string, error)
	}
)

// seeLeaving looks when each balancer stops sending to a node. The function it returns tells once ctx has ended.
func (s *scene) seeLeaving(ctx context.Context, node string) func() map[string]leaving {
	var group sync.WaitGroup
	seen := make([]leaving, len(s.subjects))
	for i, w := range s.subjects {
		group.Go(func() {
			seen[i].shown = until(ctx, lookInterval, func(ctx context.Context) (bool, error) {
				shown, err := w.balancer.Shown(ctx, w.svc)
				return err == nil && !slices.Contains(shown, node), err
			})
		})
		if look := w.dataPlane(node); look != nil {
			group.Go(func() { seen[i].forwards = until(ctx, lookInterval, look) })
		}
	}
	return func() map[string]leaving {
		group.Wait()
		out := map[string]leaving{}
		for i, w := range s.subjects {
			if w.dataPlane(node) == nil {
				seen[i].forwards = seen[i].shown // HAProxy does what it says
			}
			out[w.name()] = seen[i]
		}
		return out
	}
}

// dataPlane returns a look at whether the data plane of the balancer leaves a node out, nil when there is none but what
// the balancer says.
func (w *watched) dataPlane(node string) func(context.Context) (bool, error) {
	switch b := w.balancer.(type) {
	case neighbour:
		return func(ctx context.Context) (bool, error) {
			now, err := b.Neighbour(ctx, w.svc)
			return err == nil && now != "" && now != node, err
		}
	case forwarder:
		return func(ctx context.Context) (bool, error) {
			now, err := b.Forwards(ctx, w.svc)
			return err == nil && !slices.Contains(now, node), err
		}
	}
	return nil
}

// until looks every interval, and returns the moment before the first look that was true; zero when ctx ended first.
func until(ctx context.Context, interval time.Duration, look func(context.Context) (bool, error)) time.Time {
	var at time.Time
	_ = wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		now := time.Now()
		ok, err := look(ctx)
		if ok && err == nil {
			at = now
			return true, nil
		}
		return false, nil // what cannot be seen now may be seen later
	})
	return at
}
