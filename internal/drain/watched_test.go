package drain

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// What runs beside a drain ends the work on its node when it panics, and never the process.
func TestPanicBesides(t *testing.T) {
	var fault *safely.Panic
	t.Run("watching over a claim", func(t *testing.T) {
		n := &nodeRun{stop: newStopper()}
		if n.orEnd(func() { panic("a fault") }); !errors.As(n.stop.Err(), &fault) {
			t.Errorf("the work on the node goes on: %v", n.stop.Err())
		}
	})
	t.Run("asking other kube-proxies", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newProxied("n1", "n2")
			w.sight = func(node string) lbhooks.Sight {
				if node != "n1" {
					panic("a fault")
				}
				return lbhooks.SightUnreachable
			}
			p := &nodeProxy{Runner: w.runner(t, "r1"), usable: map[guard.Key]time.Time{}}
			target := lbhooks.Target{Service: &corev1.Service{Spec: corev1.ServiceSpec{HealthCheckNodePort: 30000}}, Node: w.api.node("n1")}
			if known, _, err := p.knows(context.Background(), target, []*corev1.Node{w.api.node("n2")}); known || !errors.As(err, &fault) {
				t.Errorf("known %v: %v", known, err)
			}
		})
	})
}
