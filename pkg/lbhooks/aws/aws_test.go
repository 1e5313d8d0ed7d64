package aws_test

import (
	"context"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/config"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

const (
	region  = "eu-west-1"
	nlbHost = "k8s-e-a-0a1b2c3d4e-0f1e2d3c4b5a6978.elb.eu-west-1.amazonaws.com"
	clbHost = "a1b2c3-1234567890.eu-west-1.elb.amazonaws.com"
	albHost = "k8s-e-a-0a1b2c3d4e-1234567890.eu-west-1.elb.amazonaws.com"
)

var nlbARN = balancerARN(region, "k8s-e-a-0a1b2c3d4e", "0f1e2d3c4b5a6978")

func service(change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "a", Annotations: map[string]string{}}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = 32000
	for _, c := range change {
		c(svc)
	}
	return svc
}

func class(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
}

func annotated(pairs ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for i := 0; i < len(pairs); i += 2 {
			s.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func hosted(host string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: host}}
	}
}

func kind(t corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Type, s.Spec.HealthCheckNodePort = t, 0 }
}

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	n.Spec.ProviderID = "aws:///eu-west-1a/i-" + name
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0." + strings.TrimPrefix(name, "n")}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(n)
	}
	return n
}

func binding(name, service, arn, targetType string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "elbv2.k8s.aws/v1beta1", "kind": "TargetGroupBinding",
		"spec": map[string]any{"serviceRef": map[string]any{"name": service, "port": "http"}, "targetGroupARN": arn, "targetType": targetType},
	}}
	u.SetNamespace("e")
	u.SetName(name)
	return u
}

// newHook builds the hook over a cloud, and a cluster with node n1 and the bindings.
func newHook(t *testing.T, load []func(*config.LoadOptions) error, values map[string]string, bindings ...*unstructured.Unstructured) (*aws.Hook, *fake.Clientset) {
	t.Helper()
	o, err := lbhooks.NewOptions(aws.Options(), values)
	if err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for _, b := range bindings {
		objects = append(objects, b)
	}
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "elbv2.k8s.aws", Version: "v1beta1", Resource: "targetgroupbindings"}: "TargetGroupBindingList",
	}, objects...)
	kube := fake.NewClientset(node("n1"), node("n2"))
	return aws.New(kube, dyn, o, load...), kube
}

func healthyTarget(id string, port int) *target { return &target{id: id, port: port, state: "healthy"} }

func nlb(name string, targets ...*target) *tg {
	return &tg{arn: arnOf(region, name), name: name, protocol: "TCP", kind: "instance", balancers: []string{nlbARN}, targets: targets, tags: map[string]string{}}
}

// network is a Network Load Balancer with two groups, one a port, as the load balancer controller makes them.
type network struct {
	cloud *cloud
	hook  *aws.Hook
	svc   *corev1.Service
}

func newNetwork(t *testing.T, byHand bool) *network {
	t.Helper()
	n := &network{cloud: newCloud(), svc: service(class("service.k8s.aws/nlb"), hosted(nlbHost))}
	g80, g443 := nlb("g80", healthyTarget("i-n2", 30080)), nlb("g443", healthyTarget("i-n2", 30443))
	n.cloud.groups = []*tg{g80, g443}
	load, values := n.cloud.serve(t), map[string]string{}
	if byHand {
		values["deregister"] = "true"
		n.svc = service(kind(corev1.ServiceTypeNodePort), annotated(aws.AnnotationGroups, g80.arn+", "+g443.arn))
	}
	n.hook, _ = newHook(t, load, values)
	if err := n.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *network) Hook() lbhooks.Hook     { return n.hook }
func (n *network) Target() lbhooks.Target { return lbhooks.Target{Service: n.svc, Node: node("n1")} }

func (n *network) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: 20, States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.Slow},
	}
}

// Show sets what AWS says of n1 in the two groups, and of n2. Lying: gone from one group, still in the other. Nobody: gone,
// while no other target is healthy.
func (n *network) Show(_ context.Context, s hooktest.State) error {
	own := map[hooktest.State][2]string{
		hooktest.In: {"healthy", "healthy"}, hooktest.Moving: {"", "initial"}, hooktest.Out: {"", "draining"},
		hooktest.Lying: {"", "healthy"}, hooktest.Nobody: {"", ""},
	}[s]
	other := "healthy"
	if s == hooktest.Nobody {
		other = "unhealthy"
	}
	n.cloud.mu.Lock()
	defer n.cloud.mu.Unlock()
	for i, g := range n.cloud.groups {
		port := []int{30080, 30443}[i]
		g.targets = []*target{{id: "i-n2", port: port, state: other}}
		if own[i] != "" {
			g.targets = append(g.targets, &target{id: "i-n1", port: port, state: own[i]})
		}
	}
	return nil
}

func (n *network) Fail(f hooktest.Fault) { n.cloud.always(faults[f]) }

var faults = map[hooktest.Fault]*answer{
	hooktest.Flaky:     {status: 400, code: "Throttling", message: "Rate exceeded"},
	hooktest.Forbidden: {status: 403, code: "ExpiredToken", message: "The security token included in the request is expired"},
	hooktest.Slow:      {hang: true},
}

// classicBalancer is a Classic Load Balancer of the cloud provider.
type classicBalancer struct{ network }

func newClassic(t *testing.T) *classicBalancer {
	t.Helper()
	c := &classicBalancer{network{cloud: newCloud(), svc: service(hosted(clbHost))}}
	c.hook, _ = newHook(t, c.cloud.serve(t), nil)
	if err := c.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return c
}

// Show sets what the balancer says of i-n1 and i-n2.
func (c *classicBalancer) Show(_ context.Context, s hooktest.State) error {
	const fails = "Instance has failed at least the UnhealthyThreshold number of health checks consecutively."
	own := map[hooktest.State][]instance{
		hooktest.In: {{"i-n1", "InService", "N/A"}}, hooktest.Moving: {{"i-n1", "Unknown", "A transient error occurred. Please try again later."}},
		hooktest.Out: {{"i-n1", "OutOfService", fails}}, hooktest.Lying: {{"i-n1", "InService", "N/A"}}, hooktest.Nobody: nil,
	}[s]
	other := instance{"i-n2", "InService", "N/A"}
	if s == hooktest.Nobody {
		other = instance{"i-n2", "OutOfService", fails}
	}
	c.cloud.mu.Lock()
	defer c.cloud.mu.Unlock()
	c.cloud.classic["a1b2c3"] = append([]instance{other}, own...)
	return nil
}

func TestContract(t *testing.T) {
	for name, fresh := range map[string]func(*testing.T) hooktest.Balancer{
		"a controller's groups": func(t *testing.T) hooktest.Balancer { return newNetwork(t, false) },
		"groups named by hand":  func(t *testing.T) hooktest.Balancer { return newNetwork(t, true) },
		"classic":               func(t *testing.T) hooktest.Balancer { return newClassic(t) },
	} {
		t.Run(name, func(t *testing.T) { hooktest.Run(t, fresh) })
	}
}
