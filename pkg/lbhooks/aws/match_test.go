package aws_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

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

// only changes the node of that name.
func only(name string, change func(*corev1.Node)) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Name == name {
			change(n)
		}
	}
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func taint(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: effect}} }
}

func notReady(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
}

const nlbClass = "service.k8s.aws/nlb"

// Sources: aws-load-balancer-controller pkg/backend/endpoint_utils.go and docs/guide/service/annotations.md; cloud-provider
// controllers/service/controller.go; cloud-provider-aws docs/service_controller.md.
func TestMatch(t *testing.T) {
	typed := func(kind string) func(*corev1.Service) {
		return annotated("service.beta.kubernetes.io/aws-load-balancer-type", kind)
	}
	arn := arnOf(region, "x")
	for name, test := range map[string]struct {
		svc      *corev1.Service
		node     func(*corev1.Node)
		bindings []*unstructured.Unstructured
		options  map[string]string
		seats    string // "" for no match; a ready endpoint is on n1, n2
		removal  any    // RemovalLabel when left out
		check    bool   // a health check is known
	}{
		"class":                  {svc: service(class(nlbClass)), seats: "Y+ Y+ N+", check: true},
		"another class":          {svc: service(class("other/x"), hosted(nlbHost))},
		"type external":          {svc: service(typed("external")), seats: "Y+ Y+ N+", check: true},
		"type nlb":               {svc: service(typed("nlb")), seats: "Y+ Y+ N+", check: true},
		"classic by its address": {svc: service(hosted(clbHost)), seats: "Y+ Y+ N+", check: true},
		"network by its address": {svc: service(hosted(nlbHost)), seats: "Y+ Y+ N+", check: true},
		"in China":               {svc: service(hosted("a-1.cn-north-1.elb.amazonaws.com.cn")), seats: "Y+ Y+ N+"},
		"no address yet":         {svc: service()},
		"another's address": {svc: service(func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		})},
		"another's address, type nlb": {svc: service(typed("nlb"), func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		})},
		"another's host":              {svc: service(hosted("elb.example.org"))},
		"kube-vip":                    {svc: service(hosted(nlbHost), annotated("kube-vip.io/vipHost", "n1"))},
		"nodes elsewhere, no address": {svc: service(typed("nlb")), node: func(n *corev1.Node) { n.Spec.ProviderID = "kind://" + n.Name }},
		"node port":                   {svc: service(kind(corev1.ServiceTypeNodePort))},
		"policy Cluster":              {svc: service(class(nlbClass), func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = ""; s.Spec.HealthCheckNodePort = 0 }), seats: "Y+ Y+ Y+"},
		"health check elsewhere":      {svc: service(class(nlbClass), annotated("service.beta.kubernetes.io/aws-load-balancer-healthcheck-port", "9000")), seats: "Y+ Y+ Y+"},
		"health check unreadable":     {svc: service(class(nlbClass), annotated("service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval", "ten")), seats: "Y+ Y+ Y+"},
		"bound node port":             {svc: service(kind(corev1.ServiceTypeNodePort)), bindings: []*unstructured.Unstructured{binding("b", "a", arn, "instance")}, seats: "Y+ Y+ N+"},
		"bound to another":            {svc: service(kind(corev1.ServiceTypeNodePort)), bindings: []*unstructured.Unstructured{binding("b", "other", arn, "instance")}},
		"bound, pods":                 {svc: service(kind(corev1.ServiceTypeNodePort)), bindings: []*unstructured.Unstructured{binding("b", "a", arn, "ip")}, seats: "N+ N+ N+", removal: lbhooks.RemovalNone},
		"bound, pods and nodes":       {svc: service(class(nlbClass)), bindings: []*unstructured.Unstructured{binding("b", "a", arn, "ip"), binding("c", "a", arn, "instance")}, seats: "Y+ Y+ N+", check: true},
		"pods by annotation":          {svc: service(typed("external"), annotated("service.beta.kubernetes.io/aws-load-balancer-nlb-target-type", "ip")), seats: "N+ N+ N+", removal: lbhooks.RemovalNone},
		"pods by type":                {svc: service(typed("nlb-ip")), seats: "N+ N+ N+", removal: lbhooks.RemovalNone},
		"controller: label false":     {svc: service(class(nlbClass)), node: only("n2", label(lbhooks.ExcludeLabel, "false")), seats: "Y+ N N+", check: true},
		"provider: label false":       {svc: service(hosted(clbHost)), node: only("n2", label(lbhooks.ExcludeLabel, "false")), seats: "Y+ Y+ N+", check: true},
		"provider: label true":        {svc: service(hosted(clbHost)), node: only("n2", label(lbhooks.ExcludeLabel, "true")), seats: "Y+ N N+", check: true},
		"label of a drain": {svc: service(class(nlbClass)), node: only("n2", func(n *corev1.Node) {
			label(lbhooks.ExcludeLabel, "true")(n)
			n.Annotations["safedrain.dev/drain"] = "{}"
		}), seats: "Y+ ? N+", check: true},
		"to be deleted":                 {svc: service(class(nlbClass)), node: only("n2", taint("ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule)), seats: "Y+ N N+", check: true},
		"controller: karpenter":         {svc: service(class(nlbClass)), node: only("n2", taint("karpenter.sh/disrupted", corev1.TaintEffectNoSchedule)), seats: "Y+ N N+", check: true},
		"provider: karpenter":           {svc: service(hosted(clbHost)), node: only("n2", taint("karpenter.sh/disrupted", corev1.TaintEffectNoSchedule)), seats: "Y+ Y+ N+", check: true},
		"controller: not Ready":         {svc: service(class(nlbClass)), node: only("n2", notReady), seats: "Y+ N+ N+", check: true},
		"provider: not Ready":           {svc: service(hosted(clbHost)), node: only("n2", notReady), seats: "Y+ Y+ N+", check: true},
		"virtual":                       {svc: service(class(nlbClass)), node: only("n2", label("eks.amazonaws.com/compute-type", "fargate")), seats: "Y+ N N+", check: true},
		"cordoned nodes stay":           {svc: service(class(nlbClass)), node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, seats: "Y+ Y+ N+", check: true},
		"selected by annotation":        {svc: service(class(nlbClass), annotated("service.beta.kubernetes.io/aws-load-balancer-target-node-labels", "edge=yes")), node: only("n2", label("edge", "yes")), seats: "N Y+ N", check: true},
		"selected by binding":           {svc: service(class(nlbClass)), bindings: []*unstructured.Unstructured{selecting(binding("b", "a", arn, "instance"), "edge", "yes")}, node: only("n1", label("edge", "yes")), seats: "Y+ N N", check: true},
		"named groups":                  {svc: service(kind(corev1.ServiceTypeNodePort), annotated(aws.AnnotationGroups, arn)), seats: "?+ ?+ ?+", removal: lbhooks.RemovalNone},
		"named groups, told":            {svc: service(kind(corev1.ServiceTypeNodePort), annotated(aws.AnnotationGroups, arn)), options: map[string]string{"deregister": "true"}, seats: "?+ ?+ ?+", removal: lbhooks.RemovalHook},
		"named groups of a controller":  {svc: service(class(nlbClass), annotated(aws.AnnotationGroups, arn)), options: map[string]string{"deregister": "true"}, seats: "Y+ Y+ N+", check: true},
		"named groups, a stated check":  {svc: service(kind(corev1.ServiceTypeNodePort), annotated(aws.AnnotationGroups, arn, lbhooks.AnnotationHealthCheck, "interval=5s,unhealthy=2")), seats: "?+ ?+ ?+", removal: lbhooks.RemovalNone, check: true},
		"an annotation that names none": {svc: service(kind(corev1.ServiceTypeNodePort), annotated(aws.AnnotationGroups, " , "))},
	} {
		t.Run(name, func(t *testing.T) {
			change := test.node
			if change == nil {
				change = func(*corev1.Node) {}
			}
			hook, _ := newHook(t, nil, test.options)
			no := false
			r, ok := hook.Match(test.svc, &hooktest.Objects{
				AllNodes: []*corev1.Node{node("n1", change), node("n2", change), node("n3", change)}, Customs: test.bindings,
				AllSlices: []*discoveryv1.EndpointSlice{
					hooktest.Slice(test.svc, discoveryv1.EndpointConditions{}, "n1", "n2"), hooktest.Slice(test.svc, discoveryv1.EndpointConditions{Ready: &no}, "n3"),
				},
			})
			if ok != (test.seats != "") {
				t.Fatalf("matched %t: %+v", ok, r)
			}
			if !ok {
				return
			}
			if test.removal == nil {
				test.removal = lbhooks.RemovalLabel
			}
			pods := test.removal == lbhooks.RemovalNone && r.PodTargets != nil
			if seats(r) != test.seats || r.Removal != test.removal || r.Provable == pods {
				t.Errorf("seats %s, removal %s, provable %t; want %s, %s", seats(r), r.Removal, r.Provable, test.seats, test.removal)
			}
			if (r.HealthCheck != nil) != test.check && !strings.Contains(test.svc.Status.LoadBalancer.String(), ".com.cn") {
				t.Errorf("health check %+v, want one: %t", r.HealthCheck, test.check)
			}
			if r.Hook != aws.Name || r.Reason == "" || r.Evidence == "" || r.FollowsServing {
				t.Errorf("%+v", r)
			}
		})
	}
}

func selecting(u *unstructured.Unstructured, key, value string) *unstructured.Unstructured {
	_ = unstructured.SetNestedStringMap(u.Object, map[string]string{key: value}, "spec", "nodeSelector", "matchLabels")
	return u
}

// A Service that nothing ties to AWS, when a user says that it is.
func TestAssert(t *testing.T) {
	hook, _ := newHook(t, nil, nil)
	svc := service(kind(corev1.ServiceTypeNodePort))
	r := hook.Assert(svc, &hooktest.Objects{AllNodes: []*corev1.Node{node("n1"), node("n2"), node("n3")}})
	if seats(r) != "Y+ Y+ Y+" || !r.Provable || r.Removal != lbhooks.RemovalLabel {
		t.Errorf("%s: %+v", seats(r), r)
	}
}
