package kuberouter_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/kuberouter"
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

func annotated(key, value string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations["kube-router.io/"+key] = value }
}

func cluster(svc *corev1.Service) {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
}

func external(svc *corev1.Service) {
	svc.Spec.Type, svc.Spec.ExternalIPs = corev1.ServiceTypeClusterIP, []string{"198.51.100.7"}
}

func agent(node string, args ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-router-" + node}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Args: args}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

func agents(args ...string) []*corev1.Pod {
	return []*corev1.Pod{agent("n1", args...), agent("n2", args...)}
}

// Sources: kube-router v2.11 pkg/controllers/routing/ecmp_vip.go: getAllVIPsForService, shouldAdvertiseService, and
// nodeHasEndpointsForService, which looks at no condition of an endpoint.
func TestMatch(t *testing.T) {
	no, yes := false, true
	terminating := discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}
	lb := "--advertise-loadbalancer-ip"
	for name, test := range map[string]struct {
		svc        *corev1.Service
		agents     []*corev1.Pod
		conditions discoveryv1.EndpointConditions // of the endpoint on n1
		seats      string                         // "" when it does not match
		says       string
	}{
		"by a flag":                {agents: agents(lb), seats: "Y+ N+ N", says: "runs with --advertise-loadbalancer-ip"},
		"a flag with a value":      {agents: agents(lb + "=true"), seats: "Y+ N+ N"},
		"a flag that is off":       {agents: agents(lb + "=false"), seats: ""},
		"no flag":                  {agents: agents("--run-router"), seats: ""},
		"terminating still counts": {agents: agents(lb), conditions: terminating, seats: "Y+ N+ N"},
		"by an annotation":         {svc: service(annotated("service.advertise.loadbalancerip", "true")), seats: "Y+ N+ N+", says: "annotation kube-router.io/service.advertise.loadbalancerip=true"},
		"an annotation against":    {svc: service(annotated("service.advertise.loadbalancerip", "false")), agents: agents(lb), seats: ""},
		"to be skipped":            {svc: service(annotated("service.skiplbips", "")), agents: agents(lb), seats: ""},
		"no address":               {svc: service(func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }), agents: agents(lb), seats: ""},
		"policy Cluster":           {svc: service(cluster), agents: agents(lb), seats: "Y+ Y+ N"},
		"Local by annotation":      {svc: service(cluster, annotated("service.local", "true")), agents: agents(lb), seats: "Y+ N+ N"},
		"external addresses":       {svc: service(external), agents: agents("--advertise-external-ip"), seats: "Y+ N+ N"},
		"external, the other flag": {svc: service(external), agents: agents(lb), seats: ""},
	} {
		t.Run(name, func(t *testing.T) {
			svc := test.svc
			if svc == nil {
				svc = service()
			}
			o := &hooktest.Objects{Pods: map[string][]*corev1.Pod{kuberouter.Name: test.agents}, AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(svc, test.conditions, "n1")}}
			for _, n := range []string{"n1", "n2", "n3"} {
				o.AllNodes = append(o.AllNodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
			}
			r, ok := kuberouter.New().Match(svc, o)
			if !ok {
				if test.seats != "" {
					t.Fatal("does not match")
				}
				return
			}
			var got []string
			for _, n := range []string{"n1", "n2", "n3"} {
				s := r.Seat(n)
				letter := map[string]string{"Yes": "Y", "No": "N", "Unknown": "?"}[string(s.In)]
				if s.Eligible {
					letter += "+"
				}
				got = append(got, letter)
			}
			if text := strings.Join(got, " "); text != test.seats {
				t.Errorf("seats %q, want %q", text, test.seats)
			}
			if r.Removal != lbhooks.RemovalNone || r.Provable || r.NoProof == "" || r.HealthCheck != nil || !r.FollowsServing {
				t.Errorf("%+v: nothing takes a node out, and grace does not either", r)
			}
			if !strings.Contains(r.Reason, test.says) {
				t.Errorf("reason %q, want %q in it", r.Reason, test.says)
			}
		})
	}
}

// TestFewSeats: of many nodes a Service lists its own only, so that it costs little in a large cluster.
func TestFewSeats(t *testing.T) {
	o := &hooktest.Objects{Pods: map[string][]*corev1.Pod{}}
	for i := range 1000 {
		name := fmt.Sprintf("n%d", i)
		o.AllNodes = append(o.AllNodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if i != 8 {
			o.Pods[kuberouter.Name] = append(o.Pods[kuberouter.Name], agent(name, "--advertise-loadbalancer-ip"))
		}
	}
	for _, svc := range []*corev1.Service{service(), service(cluster)} {
		o.AllSlices = []*discoveryv1.EndpointSlice{hooktest.Slice(svc, discoveryv1.EndpointConditions{}, "n7", "n8", "gone")}
		local := svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		r, ok := kuberouter.New().Match(svc, o)
		if !ok || len(r.Seats) > 1 || r.Seat("n7").In != lbhooks.Yes || r.Seat("n8").In != lbhooks.No || (r.Seat("n9").In == lbhooks.No) != local {
			t.Errorf("local %v: matches %v, %d seats: %v", local, ok, len(r.Seats), r.Seats)
		}
	}
}

// balancer is a kube-router, of which nothing can be seen.
type balancer struct{ hook lbhooks.Hook }

func (b balancer) Hook() lbhooks.Hook { return b.hook }

func (b balancer) Target() lbhooks.Target {
	return lbhooks.Target{Service: service(), Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
}
func (b balancer) Show(context.Context, hooktest.State) error { return nil }
func (b balancer) Fail(hooktest.Fault)                        {}
func (b balancer) Traits() hooktest.Traits {
	return hooktest.Traits{States: []hooktest.State{hooktest.Moving, hooktest.Nobody}}
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(*testing.T) hooktest.Balancer { return balancer{kuberouter.New()} })
}
