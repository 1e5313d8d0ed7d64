package servicelb_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/servicelb"
)

func node(name, address string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.ProviderID = "k3s://" + name
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	return n
}

func nodes() []*corev1.Node {
	return []*corev1.Node{node("n1", "10.0.0.1"), node("n2", "10.0.0.2"), node("n3", "10.0.0.3")}
}

func service(ips ...string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "k", Name: "t"}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	for _, ip := range ips {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return svc
}

func svclb(node, service string, ready corev1.ConditionStatus) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "svclb-" + service + "-" + node, Labels: map[string]string{
		"svccontroller.k3s.cattle.io/svcname": service, "svccontroller.k3s.cattle.io/svcnamespace": "k",
	}}}
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	return p
}

// Source: k3s pkg/cloudprovider/servicelb.go, getStatus and podIPs.
func TestMatch(t *testing.T) {
	yes := corev1.ConditionTrue
	class := "other.example/x"
	withClass := service("10.0.0.1")
	withClass.Spec.LoadBalancerClass = &class
	for name, test := range map[string]struct {
		svc    *corev1.Service
		agents []*corev1.Pod
		plain  bool // nodes that are not k3s's
		seats  string
	}{
		"listed nodes are in":              {svc: service("10.0.0.1", "10.0.0.2"), agents: []*corev1.Pod{svclb("n1", "t", yes), svclb("n2", "t", yes), svclb("n3", "t", yes)}, seats: "Y+ Y+ N+"},
		"no svclb pod, not eligible":       {svc: service("10.0.0.1"), agents: []*corev1.Pod{svclb("n1", "t", yes), svclb("n2", "t", yes)}, seats: "Y+ N+ N"},
		"its svclb pod is not ready":       {svc: service("10.0.0.1"), agents: []*corev1.Pod{svclb("n1", "t", yes), svclb("n2", "t", corev1.ConditionFalse)}, seats: "Y+ N N"},
		"nobody is listed":                 {svc: service(), agents: []*corev1.Pod{svclb("n1", "t", yes)}, seats: "N+ N N"},
		"svclb pods of another service":    {svc: service("192.0.2.1"), agents: []*corev1.Pod{svclb("n1", "other", yes)}},
		"pods not at hand, k3s nodes":      {svc: service("10.0.0.1"), seats: "Y+ N+ N+"},
		"pods not at hand, other nodes":    {svc: service("10.0.0.1"), plain: true},
		"pods not at hand, other address":  {svc: service("10.0.0.1", "192.0.2.1")},
		"a class of somebody else":         {svc: withClass, agents: []*corev1.Pod{svclb("n1", "t", yes)}},
		"not a load balancer":              {svc: &corev1.Service{}, agents: []*corev1.Pod{svclb("n1", "", yes)}},
		"svclb pods on nodes of any cloud": {svc: service("10.0.0.3"), plain: true, agents: []*corev1.Pod{svclb("n3", "t", yes)}, seats: "N N Y+"},
	} {
		t.Run(name, func(t *testing.T) {
			all := nodes()
			for _, n := range all {
				if test.plain {
					n.Spec.ProviderID = ""
				}
			}
			r, ok := servicelb.New(nil).Match(test.svc, &hooktest.Objects{AllNodes: all, Pods: map[string][]*corev1.Pod{servicelb.Name: test.agents}})
			if ok != (test.seats != "") {
				t.Fatalf("matched %t", ok)
			}
			if !ok {
				return
			}
			var got []string
			for _, n := range all {
				s := r.Seat(n.Name)
				text := map[any]string{lbhooks.Yes: "Y", lbhooks.No: "N"}[s.In]
				if s.Eligible {
					text += "+"
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != test.seats {
				t.Errorf("seats %s, want %s", got, test.seats)
			}
			if r.Hook != servicelb.Name || r.Removal != lbhooks.RemovalNone || r.Provable || !r.Follows || r.FollowsServing || r.Reason == "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

// The node's address leaves the list at the third look. Then the clients' answers of DNS have to run out, which nobody here
// knows better than the settle time: nothing may be evicted sooner than that after it. C55.
func TestLeavesTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, looks := fake.NewClientset(), 0
		client.PrependReactor("get", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
			if looks++; looks < 3 {
				return true, service("10.0.0.1", "10.0.0.2"), nil
			}
			return true, service("10.0.0.2"), nil
		})
		hook := servicelb.New(client)
		at := lbhooks.Target{Service: service("10.0.0.1", "10.0.0.2"), Node: node("n1", "10.0.0.1")}
		proof, err := lbhooks.Wait(t.Context(), clock.RealClock{}, hook, at, lbhooks.WaitOptions{Timeout: time.Minute})
		if err != nil || looks != 3 {
			t.Fatalf("proven at look %d: %+v, %v; want 3", looks, proof, err)
		}
		if lifetime := 60 * time.Second; hook.Describe().Settle < lifetime || proof.Settle != nil {
			t.Errorf("to settle %s, or %v by the proof; want %s", hook.Describe().Settle, proof.Settle, lifetime)
		}
	})
}

// balancer is a k3s that lists addresses as told.
type balancer struct {
	client *fake.Clientset
	hook   *servicelb.Hook
	fault  hooktest.Fault
}

func (b *balancer) Hook() lbhooks.Hook { return b.hook }

func (b *balancer) Target() lbhooks.Target {
	return lbhooks.Target{Service: service("10.0.0.1"), Node: node("n1", "10.0.0.1")}
}

func (b *balancer) Fail(f hooktest.Fault) { b.fault = f }

func (b *balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true,
		States:  []hooktest.State{hooktest.Moving, hooktest.Nobody},
		Out:     []hooktest.State{hooktest.Nobody},
		Faults:  []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden},
	}
}

func (b *balancer) Show(ctx context.Context, s hooktest.State) error {
	ips := map[hooktest.State][]string{
		hooktest.In: {"10.0.0.1", "10.0.0.2"}, hooktest.Moving: {"10.0.0.2", "10.0.0.1"}, hooktest.Out: {"10.0.0.2"}, hooktest.Nobody: {},
	}[s]
	_, err := b.client.CoreV1().Services("k").Update(ctx, service(ips...), metav1.UpdateOptions{})
	return err
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(*testing.T) hooktest.Balancer {
		b := &balancer{client: fake.NewClientset(service("10.0.0.1"))}
		b.client.PrependReactor("get", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
			switch b.fault {
			case hooktest.Flaky:
				return true, nil, apierrors.NewServiceUnavailable("restarting")
			case hooktest.Forbidden:
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "t", nil)
			case hooktest.Healthy, hooktest.NotServed, hooktest.Slow:
			}
			return false, nil, nil
		})
		b.hook = servicelb.New(b.client)
		return b
	})
}
