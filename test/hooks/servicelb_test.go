package hooks

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/servicelb"
)

// listing is a k3s that lists the addresses of nodes in the status of the Service.
type listing struct {
	*reader

	scene *scene
	hook  lbhooks.Hook
}

func newListing(t *testing.T) *listing {
	t.Helper()
	s := newScene(t)
	l := &listing{scene: s, reader: newReader(t, s.Env, servicelb.New(nil).Describe().Needs)}
	l.hook = servicelb.New(l.kubernetes)
	l.must(l.Show(t.Context(), hooktest.In))
	return l
}

func (l *listing) Hook() lbhooks.Hook     { return l.hook }
func (l *listing) Target() lbhooks.Target { return l.scene.target() }

func (l *listing) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: slowness,
		States: []hooktest.State{hooktest.Moving, hooktest.Nobody},
		Out:    []hooktest.State{hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.Slow},
	}
}

func (l *listing) Show(ctx context.Context, s hooktest.State) error {
	first, second := lbhooks.NodeAddresses(l.scene.nodes[0])[0].String(), lbhooks.NodeAddresses(l.scene.nodes[1])[0].String()
	services := l.scene.Client.CoreV1().Services(l.scene.Namespace)
	svc, err := services.Get(ctx, l.scene.service.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	svc.Status.LoadBalancer.Ingress = nil
	for _, address := range map[hooktest.State][]string{
		hooktest.In: {first, second}, hooktest.Moving: {second, first}, hooktest.Out: {second},
	}[s] {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address})
	}
	_, err = services.UpdateStatus(ctx, svc, metav1.UpdateOptions{})
	return err
}

func TestServiceLB(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newListing(t) })
}
