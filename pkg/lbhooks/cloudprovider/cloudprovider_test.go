package cloudprovider_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/cloudprovider"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

func service(change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "a"}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = 32000
	for _, c := range change {
		c(svc)
	}
	return svc
}

func nodes(providerID string, change func(*corev1.Node)) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range []string{"n1", "n2", "n3"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
		n.Spec.ProviderID = strings.ReplaceAll(providerID, "NAME", name)
		if change != nil {
			change(n)
		}
		out = append(out, n)
	}
	return out
}

func excluded(name, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Name == name {
			n.Labels[lbhooks.ExcludeLabel] = value
		}
	}
}

func seats(r lbhooks.Rotation) string {
	var out []string
	for _, n := range []string{"n1", "n2", "n3"} {
		s := r.Seat(n)
		text := map[any]string{lbhooks.Yes: "Y", lbhooks.No: "N", lbhooks.Unknown: "?"}[s.In]
		if s.Eligible {
			text += "+"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

const (
	openstack = "openstack:///NAME"
	aws       = "aws:///x/i-NAME"
)

// Sources: cloud-provider controllers/service/controller.go (which nodes, label, taint; neither readiness nor cordon); kube-proxy
// pkg/proxy/healthcheck/service_health.go (who answers the probe).
func TestMatch(t *testing.T) {
	for name, test := range map[string]struct {
		svc     *corev1.Service
		nodes   []*corev1.Node
		on      []string
		seats   string // "" for no match
		honours bool
	}{
		"nobody known to probe: every node of the pool": {nodes: nodes(openstack, nil), on: []string{"n1"}, seats: "Y+ Y+ Y+"},
		"a probe is known: nodes with a ready endpoint": {nodes: nodes(aws, nil), on: []string{"n1"}, seats: "Y+ N+ N+", honours: true},
		"a probe by our annotation": {svc: service(func(s *corev1.Service) {
			s.Annotations = map[string]string{lbhooks.AnnotationHealthCheck: "interval=5s,unhealthy=2"}
		}), nodes: nodes(openstack, nil), on: []string{"n2"}, seats: "N+ Y+ N+", honours: true},
		"a probe that cannot be read is not counted on": {svc: service(func(s *corev1.Service) {
			s.Annotations = map[string]string{lbhooks.AnnotationHealthCheck: "5s"}
		}), nodes: nodes(openstack, nil), on: []string{"n2"}, seats: "Y+ Y+ Y+"},
		"label false is included":          {nodes: nodes(openstack, excluded("n2", "false")), seats: "Y+ Y+ Y+"},
		"label empty is excluded":          {nodes: nodes(openstack, excluded("n3", "")), seats: "Y+ Y+ N"},
		"label true is excluded":           {nodes: nodes(aws, excluded("n1", "true")), on: []string{"n1"}, seats: "N N+ N+", honours: true},
		"label false on azure: presence":   {nodes: nodes("azure:///NAME", excluded("n2", "false")), on: []string{"n1", "n2"}, seats: "Y+ N N+", honours: true},
		"label of a drain, not yet a fact": {nodes: nodes(openstack, func(n *corev1.Node) { excluded("n1", "true")(n); n.Annotations["safedrain.dev/drain"] = "{}" }), seats: "? Y+ Y+"},
		"cordoned and not ready nodes stay": {nodes: nodes(openstack, func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}), seats: "Y+ Y+ Y+"},
		"about to be deleted": {nodes: nodes(openstack, func(n *corev1.Node) {
			if n.Name == "n2" {
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
			}
		}), seats: "Y+ N Y+"},
		"virtual node": {nodes: nodes(aws, func(n *corev1.Node) {
			if n.Name == "n2" {
				n.Labels["type"] = "virtual-kubelet"
			}
		}), on: []string{"n1", "n2"}, seats: "Y+ N N+", honours: true},
		"policy Cluster":                   {svc: service(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "" }), nodes: nodes(aws, nil), on: []string{"n1"}, seats: "Y+ Y+ Y+"},
		"no provider, but an address":      {svc: service(func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "1.2.3.4"}} }), nodes: nodes("", nil), seats: "Y+ Y+ Y+"},
		"no provider, no address":          {nodes: nodes("", nil)},
		"a class is somebody else's":       {svc: service(func(s *corev1.Service) { c := "x"; s.Spec.LoadBalancerClass = &c }), nodes: nodes(aws, nil)},
		"not a load balancer":              {svc: service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }), nodes: nodes(aws, nil)},
		"kube-vip does not read the label": {svc: service(func(s *corev1.Service) { s.Annotations = map[string]string{"kube-vip.io/vipHost": "n1"} }), nodes: nodes(aws, nil)},
		"pod targets": {svc: service(func(s *corev1.Service) {
			s.Annotations = map[string]string{"service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip"}
		}), nodes: nodes(aws, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			svc := test.svc
			if svc == nil {
				svc = service()
			}
			no := false
			r, ok := cloudprovider.New(nil).Match(svc, &hooktest.Objects{AllNodes: test.nodes, AllSlices: []*discoveryv1.EndpointSlice{
				hooktest.Slice(svc, discoveryv1.EndpointConditions{}, test.on...), hooktest.Slice(svc, discoveryv1.EndpointConditions{Ready: &no}, "n3"),
			}})
			if ok != (test.seats != "") {
				t.Fatalf("matched %t", ok)
			}
			if !ok {
				return
			}
			if seats(r) != test.seats {
				t.Errorf("seats %s, want %s (%s)", seats(r), test.seats, r.Evidence)
			}
			if (r.HealthCheck != nil) != test.honours || r.Follows != test.honours {
				t.Errorf("health check %+v, follows %t; want %t", r.HealthCheck, r.Follows, test.honours)
			}
			if r.Removal != lbhooks.RemovalLabel || r.Provable || r.Hook != cloudprovider.Name || r.Reason == "" || r.FollowsServing {
				t.Errorf("%+v", r)
			}
		})
	}
}

// balancer is a cloud of which nothing can be seen but the controller's events.
type balancer struct {
	client *fake.Clientset
	hook   *cloudprovider.Hook
	fault  hooktest.Fault
}

func newBalancer() *balancer {
	b := &balancer{client: fake.NewClientset()}
	b.client.PrependReactor("list", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
		switch b.fault {
		case hooktest.Flaky:
			return true, nil, apierrors.NewServiceUnavailable("restarting")
		case hooktest.NotServed, hooktest.Forbidden, hooktest.Slow, hooktest.Healthy:
		}
		return false, nil, nil
	})
	b.hook = cloudprovider.New(b.client)
	return b
}

func (b *balancer) Hook() lbhooks.Hook { return b.hook }

func (b *balancer) Target() lbhooks.Target {
	return lbhooks.Target{Service: service(), Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
}

func (b *balancer) Fail(f hooktest.Fault) { b.fault = f }

func (b *balancer) Traits() hooktest.Traits {
	return hooktest.Traits{States: []hooktest.State{hooktest.Moving}, Faults: []hooktest.Fault{hooktest.Flaky}}
}

// Show records that the controller called the cloud, whatever the state is.
func (b *balancer) Show(ctx context.Context, s hooktest.State) error {
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "e", GenerateName: "a-"}, Reason: "UpdatedLoadBalancer", LastTimestamp: metav1.Now()}
	event.Name = "a-" + string(s) + time.Now().Format(".000000000")
	_, err := b.client.CoreV1().Events("e").Create(ctx, event, metav1.CreateOptions{})
	return err
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(*testing.T) hooktest.Balancer { return newBalancer() })
}

func TestProveEvidence(t *testing.T) {
	at := func(minute int) metav1.Time {
		return metav1.NewTime(time.Date(2026, 11, 30, 14, minute, 0, 0, time.UTC))
	}
	event := func(name, reason string, when metav1.Time) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: name}, Reason: reason, LastTimestamp: when}
	}
	for name, test := range map[string]struct {
		events []runtime.Object
		deny   bool
		says   string
	}{
		"none":      {says: "no event"},
		"unrelated": {events: []runtime.Object{event("x", "EnsuringLoadBalancer", at(1))}, says: "no event"},
		"updated":   {events: []runtime.Object{event("x", "UpdateLoadBalancerFailed", at(1)), event("y", "UpdatedLoadBalancer", at(2))}, says: "updated the balancer's nodes at 2026-11-30T14:02:00Z"},
		"failed":    {events: []runtime.Object{event("x", "UpdatedLoadBalancer", at(1)), event("y", "UpdateLoadBalancerFailed", at(2))}, says: "could not update"},
		"forbidden": {deny: true, says: "may not be read"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.events...)
			if test.deny {
				client.PrependReactor("list", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil)
				})
			}
			p, err := cloudprovider.New(client).Prove(t.Context(), newBalancer().Target())
			if err != nil || p.Out || !strings.Contains(p.Evidence, test.says) || !strings.Contains(p.Evidence, "nothing confirms") {
				t.Errorf("%+v, %v; want %q", p, err, test.says)
			}
		})
	}
}
