package kubevip_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip/kubeviptest"
)

// double is a client whose reads of Leases and pods fail as told.
type double struct {
	*fake.Clientset

	fault atomic.Value
}

func newDouble(objects ...runtime.Object) *double {
	d := &double{Clientset: fake.NewClientset(objects...)}
	d.fault.Store(hooktest.Healthy)
	d.PrependReactor("list", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		resource := a.GetResource().GroupResource()
		switch d.fault.Load().(hooktest.Fault) {
		case hooktest.Flaky:
			return true, nil, apierrors.NewServiceUnavailable("the API server is restarting")
		case hooktest.Forbidden:
			return true, nil, apierrors.NewForbidden(resource, "", nil)
		case hooktest.Slow:
			time.Sleep(60 * time.Millisecond) // a double knows no context
			return true, nil, context.DeadlineExceeded
		}
		return false, nil, nil
	})
	return d
}

func nodes(names ...string) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range names {
		out = append(out, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}})
	}
	return out
}

func service(change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "lb", Annotations: map[string]string{}}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
	for _, c := range change {
		c(svc)
	}
	return svc
}

type bench struct {
	*kubeviptest.Balancer

	clock *clocktesting.FakePassiveClock
}

func newBench(t *testing.T, kind kubeviptest.Kind, change ...func(*corev1.Service)) *bench {
	t.Helper()
	all := nodes("n1", "n2", "n3")
	d := newDouble(all[0].DeepCopy(), all[1].DeepCopy(), all[2].DeepCopy())
	b := &bench{clock: clocktesting.NewFakePassiveClock(time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC))}
	var err error
	b.Balancer, err = kubeviptest.New(kubeviptest.Config{
		Kind: kind, Writer: d, Nodes: all, Namespace: "kube-vip", Clock: b.clock,
		Target: lbhooks.Target{Service: service(change...), Node: all[0]},
		Fail:   func(f hooktest.Fault) { d.fault.Store(f) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestContract(t *testing.T) {
	for _, kind := range []kubeviptest.Kind{kubeviptest.PerService, kubeviptest.Global, kubeviptest.BGP} {
		t.Run(string(kind), func(t *testing.T) {
			hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newBench(t, kind) })
		})
	}
}

func (b *bench) prove(t *testing.T) lbhooks.Proof {
	t.Helper()
	p, err := b.Hook().Prove(t.Context(), b.Target())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Each state says why it proves nothing. Sources: kube-vip pkg/election/election.go, ReleaseOnCancel; pkg/endpoints,
// which counts serving endpoints of the own node; pkg/node/labeler.
func TestEvidence(t *testing.T) {
	for name, test := range map[string]struct {
		kind  kubeviptest.Kind
		state hooktest.State
		out   bool
		says  string
	}{
		"runs":           {kubeviptest.PerService, hooktest.In, false, "kube-vip still runs on n1: kube-vip/kube-vip-ds-n1"},
		"released":       {kubeviptest.PerService, hooktest.Moving, false, "nobody holds Lease t/kubevip-lb"},
		"moved":          {kubeviptest.PerService, hooktest.Out, true, "Lease t/kubevip-lb is held by n2"},
		"labelled still": {kubeviptest.PerService, hooktest.Lying, false, "n1 is labelled to have the address too"},
		"no endpoint":    {kubeviptest.PerService, hooktest.Nobody, false, "n3, renewed 2026-11-30T14:00:00Z, which has no usable endpoint"},
		"global":         {kubeviptest.Global, hooktest.Out, true, "Lease kube-vip/plndr-svcs-lock is held by n2"},
		"back again":     {kubeviptest.Global, hooktest.Lying, false, "kube-vip still runs on n1"},
		"bgp":            {kubeviptest.BGP, hooktest.Out, true, "its BGP sessions are closed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, test.kind)
			if err := b.Show(t.Context(), test.state); err != nil {
				t.Fatal(err)
			}
			if p := b.prove(t); p.Out != test.out || !strings.Contains(p.Evidence, test.says) {
				t.Errorf("out %t, %q; want %t, %q", p.Out, p.Evidence, test.out, test.says)
			}
		})
	}
}

// A Lease that nobody renews is a dead holder's. The times in it are of the holder's clock: one that is far off is
// believed once it is seen to be renewed.
func TestFreshness(t *testing.T) {
	for name, off := range map[string]time.Duration{"behind": -10 * time.Minute, "ahead": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, kubeviptest.PerService)
			if err := b.Show(t.Context(), hooktest.Out); err != nil {
				t.Fatal(err)
			}
			theirs := b.clock.Now().Add(off)
			hold := func() {
				t.Helper()
				if err := b.Hold(t.Context(), "n2", theirs); err != nil {
					t.Fatal(err)
				}
			}
			hold()
			if p := b.prove(t); p.Out {
				t.Fatalf("never seen to be renewed, and out: %s", p.Evidence)
			}
			theirs = theirs.Add(2 * time.Second)
			b.clock.SetTime(b.clock.Now().Add(2 * time.Second))
			hold()
			if p := b.prove(t); !p.Out || p.By != "n2" {
				t.Fatalf("seen to be renewed, and not out: %s", p.Evidence)
			}
			b.clock.SetTime(b.clock.Now().Add(16 * time.Second))
			if p := b.prove(t); p.Out {
				t.Errorf("not renewed for longer than its duration, and out: %s", p.Evidence)
			}
		})
	}
}

// Of policy Cluster the holder needs no endpoint of its own.
func TestClusterPolicy(t *testing.T) {
	b := newBench(t, kubeviptest.PerService, func(svc *corev1.Service) {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	})
	if err := b.Show(t.Context(), hooktest.Nobody); err != nil {
		t.Fatal(err)
	}
	if p := b.prove(t); !p.Out || p.By != "n3" {
		t.Errorf("out %t by %q: %s", p.Out, p.By, p.Evidence)
	}
}
