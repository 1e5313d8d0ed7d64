package cilium_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/cilium"
	"github.com/safedrain/safedrain/pkg/lbhooks/cilium/ciliumtest"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

func newDynamic() dynamic.Interface {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		ciliumtest.NodeConfigs: "CiliumBGPNodeConfigList", ciliumtest.PeerConfigs: "CiliumBGPPeerConfigList",
		{Group: "cilium.io", Version: "v2alpha1", Resource: "ciliumbgpnodeconfigs"}: "CiliumBGPNodeConfigList",
	})
}

func newBalancer(t *testing.T) (*ciliumtest.Balancer, dynamic.Interface) {
	t.Helper()
	client := newDynamic()
	reader := hooktest.NewFaultyLists(client)
	b := ciliumtest.New(ciliumtest.Config{
		Writer: client, Reader: reader, Other: "n2", Fail: reader.Set,
		Target: lbhooks.Target{Service: service(), Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}},
	})
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b, client
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer {
		b, _ := newBalancer(t)
		return b
	})
}

// newAnnouncer is an announcer over a double whose reads of Leases fail as told.
func newAnnouncer(t *testing.T) *ciliumtest.Announcer {
	t.Helper()
	client := fake.NewClientset()
	var fault atomic.Value
	fault.Store(hooktest.Healthy)
	client.PrependReactor("get", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
		switch fault.Load().(hooktest.Fault) {
		case hooktest.Flaky:
			return true, nil, apierrors.NewServiceUnavailable("the API server is restarting")
		case hooktest.Forbidden:
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "", nil)
		case hooktest.Slow:
			time.Sleep(60 * time.Millisecond) // a double knows no context
			return true, nil, context.DeadlineExceeded
		}
		return false, nil, nil
	})
	svc := service(cluster)
	a := ciliumtest.NewAnnouncer(ciliumtest.AnnouncerConfig{
		Writer: client, Reader: client, Other: "n2", Fail: func(f hooktest.Fault) { fault.Store(f) },
		Target: lbhooks.Target{Service: svc, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}},
	})
	if err := a.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestContractL2(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newAnnouncer(t) })
}

// Sources: Cilium pkg/k8s/apis/cilium.io/v2/bgp_node_types.go (status), bgp_peer_types.go (gracefulRestart, default 120 s).
func TestProve(t *testing.T) {
	for name, test := range map[string]struct {
		state  hooktest.State
		peers  map[string]any // spec of a CiliumBGPPeerConfig
		out    bool
		says   string
		settle time.Duration // 0: the hook's own
	}{
		"established":          {state: hooktest.In, says: "1 of 1 sessions established, 3 routes advertised"},
		"down, but configured": {state: hooktest.Moving, says: "0 of 1 sessions established"},
		"gone":                 {state: hooktest.Out, out: true, says: "there is no CiliumBGPNodeConfig n1"},
		"graceful restart": {
			state: hooktest.Out, out: true, says: "may keep its routes for 2m0s", settle: 2 * time.Minute,
			peers: map[string]any{"gracefulRestart": map[string]any{"enabled": true}},
		},
		"graceful restart, said": {
			state: hooktest.Out, out: true, says: "for 15s", settle: 15 * time.Second,
			peers: map[string]any{"gracefulRestart": map[string]any{"enabled": true, "restartTimeSeconds": int64(15)}},
		},
		"graceful restart off": {
			state: hooktest.Out, out: true, says: "closed",
			peers: map[string]any{"gracefulRestart": map[string]any{"enabled": false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, client := newBalancer(t)
			if test.peers != nil {
				if err := hooktest.Apply(t.Context(), client, ciliumtest.PeerConfigs, hooktest.Custom("cilium.io/v2", "CiliumBGPPeerConfig", "p", test.peers, nil)); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Show(t.Context(), test.state); err != nil {
				t.Fatal(err)
			}
			p, err := b.Hook().Prove(t.Context(), b.Target())
			if err != nil || p.Out != test.out || !strings.Contains(p.Evidence, test.says) {
				t.Errorf("out %t, %q, %v; want %t, %q", p.Out, p.Evidence, err, test.out, test.says)
			}
			if got := p.Settle; (got == nil) != (test.settle == 0) || got != nil && *got != test.settle {
				t.Errorf("settle %v, want %s", got, test.settle)
			}
		})
	}
}

// Before the backends of a node go, another node with a backend has to have a session.
func TestBefore(t *testing.T) {
	other := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}
	for name, test := range map[string]struct {
		state hooktest.State
		fault hooktest.Fault
		want  error
	}{
		"another has one":       {state: hooktest.In},
		"none is configured":    {state: hooktest.Nobody, want: lbhooks.ErrNotProven},
		"may not be looked for": {state: hooktest.In, fault: hooktest.Forbidden, want: lbhooks.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBalancer(t)
			if err := b.Show(t.Context(), test.state); err != nil {
				t.Fatal(err)
			}
			b.Fail(test.fault)
			evidence, err := b.Hook().(lbhooks.Preflight).Before(t.Context(), b.Target(), other)
			if !errors.Is(err, test.want) || (err == nil) != strings.Contains(evidence, "n2 has an established session") {
				t.Errorf("%q, %v; want %v", evidence, err, test.want)
			}
		})
	}
}

// Of policy Cluster the holder of the Lease announces; the policy Local is never proven. Sources: Cilium
// Documentation/network/l2-announcements.rst (the Lease, its holder, policy Local), pkg/l2announcer (its name).
func TestProveL2(t *testing.T) {
	for name, test := range map[string]struct {
		holder string
		age    time.Duration
		local  bool
		out    bool
		says   string
	}{
		"held by the node": {holder: "n1", says: "is held by n1"},
		"moved":            {holder: "n2", out: true, says: "not seen"},
		"dead":             {holder: "n2", age: time.Minute, says: "may be dead"},
		"nobody":           {says: "nobody holds"},
		"policy Local":     {holder: "n2", local: true, says: "do not support"},
	} {
		t.Run(name, func(t *testing.T) {
			seconds, at := int32(15), metav1.NewMicroTime(time.Now().Add(-test.age))
			client := fake.NewClientset(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-l2announce-t-lb"},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &test.holder, LeaseDurationSeconds: &seconds, RenewTime: &at},
			})
			svc := service()
			if !test.local {
				svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
			}
			p, err := cilium.NewL2(client, clock.RealClock{}).Prove(t.Context(), lbhooks.Target{Service: svc, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}})
			if err != nil || p.Out != test.out || !strings.Contains(p.Evidence, test.says) {
				t.Errorf("out %t, %q, %v; want %t, %q", p.Out, p.Evidence, err, test.out, test.says)
			}
		})
	}
}
