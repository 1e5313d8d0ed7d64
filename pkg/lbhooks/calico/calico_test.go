package calico_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/calico"
	"github.com/safedrain/safedrain/pkg/lbhooks/calico/calicotest"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

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

func cluster(svc *corev1.Service) {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
}

func node(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

func newBalancer(t *testing.T) *calicotest.Balancer {
	t.Helper()
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		calicotest.Statuses: "CalicoNodeStatusList",
		{Group: "projectcalico.org", Version: "v3", Resource: "caliconodestatuses"}: "CalicoNodeStatusList",
	})
	reader := hooktest.NewFaultyLists(client)
	b := calicotest.New(calicotest.Config{Writer: client, Reader: reader, Fail: reader.Set, Target: lbhooks.Target{Service: service(), Node: node("n1")}})
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer {
		b := newBalancer(t)
		var reports sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		reports.Go(func() { b.Report(ctx, 10*time.Millisecond) })
		t.Cleanup(func() { cancel(); reports.Wait() })
		return b
	})
}

// Sources: Calico api/pkg/apis/projectcalico/v3/nodestatus.go; confd/pkg/backends/calico/routes.go and client.go, where
// the ranges of addresses are routes of a node too.
func TestEvidence(t *testing.T) {
	b := newBalancer(t)
	for _, step := range []struct {
		state hooktest.State
		out   bool
		says  string
	}{
		{hooktest.In, false, "n1 still originates 192.0.2.10/32"},
		{hooktest.Moving, false, "n1 still originates 192.0.2.0/24"},
		{hooktest.Lying, false, "was not updated since"},
		{hooktest.Out, true, "n1 originates no route to it"},
	} {
		if err := b.Show(t.Context(), step.state); err != nil {
			t.Fatal(err)
		}
		p, err := b.Hook().Prove(t.Context(), b.Target())
		if err != nil || p.Out != step.out || !strings.Contains(p.Evidence, step.says) {
			t.Errorf("%s: out %t, %q, %v; want %t, %q", step.state, p.Out, p.Evidence, err, step.out, step.says)
		}
	}
	// A hook that sees the status for the first time does not know whether it is older than the withdrawal.
	again := newBalancer(t)
	if err := again.Show(t.Context(), hooktest.Out); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true} {
		p, err := again.Hook().Prove(t.Context(), again.Target())
		if err != nil || p.Out != want {
			t.Errorf("look %d: out %t, %q, %v; want %t", i+1, p.Out, p.Evidence, err, want)
		}
		if err := again.Show(t.Context(), hooktest.Out); err != nil {
			t.Fatal(err)
		}
	}
	other := b.Target()
	other.Node = node("n9")
	if p, err := b.Hook().Prove(t.Context(), other); err != nil || p.Out || !strings.Contains(p.Evidence, "no CalicoNodeStatus") {
		t.Errorf("a node without a status: out %t, %q, %v", p.Out, p.Evidence, err)
	}
}

func config(fields map[string]any) *unstructured.Unstructured {
	return hooktest.Custom("crd.projectcalico.org/v1", "BGPConfiguration", "default", fields, nil)
}

func blocks(cidrs ...string) []any {
	var out []any
	for _, c := range cidrs {
		out = append(out, map[string]any{"cidr": c})
	}
	return out
}

func status(node string, classes []any, destinations ...string) *unstructured.Unstructured {
	var routes []any
	for _, d := range destinations {
		routes = append(routes, map[string]any{"destination": d, "learnedFrom": map[string]any{"sourceType": "Static"}})
	}
	return hooktest.Custom("crd.projectcalico.org/v1", "CalicoNodeStatus", node,
		map[string]any{"node": node, "classes": classes, "updatePeriodSeconds": int64(10)},
		map[string]any{"lastUpdated": "2026-11-30T14:00:00Z", "routes": map[string]any{"routesV4": routes}})
}

func seats(r *lbhooks.Rotation) string {
	var out []string
	for _, n := range []string{"n1", "n2", "n3"} {
		s := r.Seat(n)
		letter := map[string]string{"Yes": "Y", "No": "N", "Unknown": "?"}[string(s.In)]
		if s.Eligible {
			letter += "+"
		}
		out = append(out, letter)
	}
	return strings.Join(out, " ")
}

// Sources: Calico confd/pkg/backends/calico/routes.go advertiseThisService, getAllRoutesForService, isAllowedLoadBalancerIP;
// client.go ExcludeServiceAdvertisement (only "true"), updateGlobalRoutes (ranges, from every node).
func TestMatch(t *testing.T) {
	no := false
	lb := config(map[string]any{"serviceLoadBalancerIPs": blocks("192.0.2.0/24")})
	routes := []any{"Routes"}
	label := lbhooks.ExcludeLabel
	claimed := node("n1", label, "true")
	claimed.Annotations["safedrain.dev/drain"] = "{}"
	for name, test := range map[string]struct {
		svc        *corev1.Service
		objects    []*unstructured.Unstructured
		n1         *corev1.Node
		conditions discoveryv1.EndpointConditions // of the endpoint on n1
		going      []string
		seats      string // "" when it does not match
		proof      bool
		says       string
	}{
		"policy Local":              {objects: []*unstructured.Unstructured{lb}, seats: "Y+ N+ N+", says: "no CalicoNodeStatus of class Routes"},
		"not ready":                 {objects: []*unstructured.Unstructured{lb}, conditions: discoveryv1.EndpointConditions{Ready: &no}, seats: "N+ N+ N+"},
		"policy Cluster, the range": {svc: service(cluster), objects: []*unstructured.Unstructured{lb}, conditions: discoveryv1.EndpointConditions{Ready: &no}, seats: "Y+ Y+ Y+"},
		"policy Cluster, a route each, no endpoint": {
			svc: service(cluster), conditions: discoveryv1.EndpointConditions{Ready: &no}, seats: "N+ N+ N+",
			objects: []*unstructured.Unstructured{config(map[string]any{"serviceLoadBalancerIPs": blocks("192.0.2.0/24"), "serviceLoadBalancerAggregation": "Disabled"})},
		},
		"label true":                       {objects: []*unstructured.Unstructured{lb}, n1: node("n1", label, "true"), seats: "N N+ N+"},
		"label false":                      {objects: []*unstructured.Unstructured{lb}, n1: node("n1", label, "false"), seats: "Y+ N+ N+"},
		"label of Karpenter":               {objects: []*unstructured.Unstructured{lb}, n1: node("n1", label, "karpenter"), seats: "Y+ N+ N+"},
		"label of a drain":                 {objects: []*unstructured.Unstructured{lb}, n1: claimed, seats: "? N+ N+"},
		"policy Cluster, label true":       {svc: service(cluster), objects: []*unstructured.Unstructured{lb}, n1: node("n1", label, "true"), seats: "N Y+ Y+"},
		"policy Cluster, label of a drain": {svc: service(cluster), objects: []*unstructured.Unstructured{lb}, n1: claimed, seats: "? Y+ Y+"},
		"policy Cluster, observed":         {svc: service(cluster), objects: []*unstructured.Unstructured{lb, status("n2", routes), status("n3", routes, "192.0.2.0/25")}, seats: "Y+ N+ Y+", proof: true, says: "observed on 2 nodes"},
		"a virtual node":                   {objects: []*unstructured.Unstructured{lb, status("n1", routes, "192.0.2.10/32")}, n1: node("n1", "type", "virtual-kubelet"), seats: "N N+ N+", says: "observed on 0 nodes"},
		"observed in":                      {objects: []*unstructured.Unstructured{lb, status("n1", routes, "192.0.2.10/32")}, seats: "Y+ N+ N+", proof: true, says: "observed on 1 nodes"},
		"observed out":                     {objects: []*unstructured.Unstructured{lb, status("n1", routes, "198.51.100.0/24")}, seats: "N+ N+ N+", proof: true},
		"observed, label of us":            {objects: []*unstructured.Unstructured{lb, status("n1", routes, "192.0.2.0/24")}, n1: claimed, seats: "Y N+ N+", proof: true},
		"a status without":                 {objects: []*unstructured.Unstructured{lb, status("n1", []any{"BGP"})}, seats: "Y+ N+ N+"},
		"leaving, observed":                {objects: []*unstructured.Unstructured{lb, status("n1", routes, "192.0.2.10/32")}, going: []string{"n1"}, seats: "Y+ N+ N+", proof: true},
		"leaving, unseen":                  {objects: []*unstructured.Unstructured{lb, status("n2", routes)}, going: []string{"n1"}, seats: "Y+ N+ N+", says: "shows it for n1"},
		"another range":                    {objects: []*unstructured.Unstructured{config(map[string]any{"serviceLoadBalancerIPs": blocks("198.51.100.0/24")})}, seats: ""},
		"an external address": {
			svc: service(func(s *corev1.Service) { s.Spec.Type = "NodePort"; s.Spec.ExternalIPs = []string{"198.51.100.7"} }), seats: "Y+ N+ N+", says: "198.51.100.7 is in serviceExternalIPs 198.51.100.0/24",
			objects: []*unstructured.Unstructured{config(map[string]any{"serviceExternalIPs": blocks("198.51.100.0/24")})},
		},
		"of its own API server": {objects: []*unstructured.Unstructured{hooktest.Custom("projectcalico.org/v3", "BGPConfiguration", "default", map[string]any{"serviceLoadBalancerIPs": blocks("192.0.2.0/24")}, nil)}, seats: "Y+ N+ N+"},
		"of one node":           {objects: []*unstructured.Unstructured{hooktest.Custom("crd.projectcalico.org/v1", "BGPConfiguration", "node.n1", map[string]any{"serviceLoadBalancerIPs": blocks("192.0.2.0/24")}, nil)}, seats: ""},
		"nothing of Calico":     {seats: ""},
	} {
		t.Run(name, func(t *testing.T) {
			svc, n1 := test.svc, test.n1
			if svc == nil {
				svc = service()
			}
			if n1 == nil {
				n1 = node("n1")
			}
			o := &hooktest.Objects{
				AllNodes: []*corev1.Node{n1, node("n2"), node("n3")}, Customs: test.objects, Going: test.going,
				AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(svc, test.conditions, "n1")},
			}
			r, ok := calico.New(nil, clock.RealClock{}).Match(svc, o)
			if !ok {
				if test.seats != "" {
					t.Fatal("does not match")
				}
				return
			}
			if got := seats(&r); got != test.seats {
				t.Errorf("seats %q, want %q", got, test.seats)
			}
			if r.Removal != lbhooks.RemovalLabel || r.Provable != test.proof || (r.NoProof == "") != test.proof {
				t.Errorf("removal %s, provable %t, %q; want %t", r.Removal, r.Provable, r.NoProof, test.proof)
			}
			if all := fmt.Sprint(r.Reason, "; ", r.Evidence, "; ", r.NoProof); !strings.Contains(all, test.says) {
				t.Errorf("%q, want %q in it", all, test.says)
			}
			if local := svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal; (r.HealthCheck != nil) != local {
				t.Errorf("grace %v, want it for policy Local only", r.HealthCheck)
			}
		})
	}
}

// TestFewSeats: of many nodes a Service lists its own only, so that it costs little in a large cluster.
func TestFewSeats(t *testing.T) {
	o := &hooktest.Objects{Customs: []*unstructured.Unstructured{config(map[string]any{"serviceLoadBalancerIPs": blocks("192.0.2.0/24")})}}
	for i := range 1000 {
		name := fmt.Sprintf("n%d", i)
		o.AllNodes = append(o.AllNodes, node(name))
		o.Customs = append(o.Customs, status(name, []any{"Routes"}, fmt.Sprintf("10.%d.%d.0/26", i/250, i%250)))
	}
	o.Customs = append(o.Customs, status("n7", []any{"Routes"}, "192.0.2.10/32"))
	svc := service()
	o.AllSlices = []*discoveryv1.EndpointSlice{hooktest.Slice(svc, discoveryv1.EndpointConditions{}, "n7", "n8", "gone")}
	r, ok := calico.New(nil, clock.RealClock{}).Match(svc, o)
	if !ok || len(r.Seats) != 2 || r.Seat("n7").In != lbhooks.Yes || r.Seat("n8").In != lbhooks.No || r.Seat("gone").In != lbhooks.No {
		t.Errorf("matches %v, %d seats: %v", ok, len(r.Seats), r.Seats)
	}
}
