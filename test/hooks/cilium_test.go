package hooks

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks/cilium"
	"github.com/safedrain/safedrain/pkg/lbhooks/cilium/ciliumtest"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/test/customkinds"
)

// ciliumBGP is a BGP control plane whose node configurations are real objects, and whose hook reads them as a user of its
// own.
type ciliumBGP struct {
	*ciliumtest.Balancer

	reader *reader
}

func newCiliumBGP(t *testing.T) *ciliumBGP {
	t.Helper()
	configs := customkinds.Kind{GroupVersionResource: ciliumtest.NodeConfigs, Name: "CiliumBGPNodeConfig"}
	serve(t, configs, customkinds.Kind{GroupVersionResource: ciliumtest.PeerConfigs, Name: "CiliumBGPPeerConfig"})
	s := newScene(t)
	// What is proven by needs that one kind alone; its role is the one that is waited for.
	needs := cilium.NewBGP(nil).Describe().Needs
	needs[0], needs[2] = needs[2], needs[0]
	b := &ciliumBGP{reader: newReader(t, s.Env, needs, configs)}
	b.Balancer = ciliumtest.New(ciliumtest.Config{
		Writer: admin, Reader: b.reader.dynamic, Target: s.target(), Other: s.nodes[1].Name, Fail: b.reader.Fail, Slowness: slowness,
	})
	t.Cleanup(func() {
		for _, n := range s.nodes { // its kind may be gone by now
			if err := admin.Resource(ciliumtest.NodeConfigs).Delete(context.Background(), n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	b.reader.must(b.Show(t.Context(), hooktest.In))
	return b
}

// newCiliumL2 is an announcement by L2 whose Lease is a real object, and whose hook reads it as a user of its own.
func newCiliumL2(t *testing.T) *ciliumtest.Announcer {
	t.Helper()
	s := newScene(t, func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster })
	needs := cilium.NewL2(nil, clock.RealClock{}).Describe().Needs
	r := newReader(t, s.Env, needs[1:]) // the proof needs Leases alone
	a := ciliumtest.NewAnnouncer(ciliumtest.AnnouncerConfig{
		Writer: s.Client, Reader: r.kubernetes, Target: s.target(), Other: s.nodes[1].Name, Fail: r.Fail, Slowness: slowness,
	})
	t.Cleanup(func() {
		err := s.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(context.Background(), ciliumtest.LeaseName(s.target()), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	r.must(a.Show(t.Context(), hooktest.In))
	return a
}

func TestCiliumL2(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newCiliumL2(t) })
}

func TestCiliumBGP(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newCiliumBGP(t) })
}
