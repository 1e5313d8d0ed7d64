package cilium_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/cilium"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

func service(change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "lb", Labels: map[string]string{"bgp": "yes"}, Annotations: map[string]string{}}}
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

func class(name string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = &name }
}

func nodes() []*corev1.Node {
	var out []*corev1.Node
	for _, name := range []string{"n1", "n2", "n3"} {
		out = append(out, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": "a"}}})
	}
	out[2].Labels["rack"] = "b"
	return out
}

// advertisement advertises Services, and more, by labels of the Service; nil is no selector.
func advertisement(selector map[string]any, kinds ...string) *unstructured.Unstructured {
	var entries []any
	for _, kind := range kinds {
		entry := map[string]any{"advertisementType": kind}
		if kind == "Service" {
			entry["service"] = map[string]any{"addresses": []any{"LoadBalancerIP"}}
			if selector != nil {
				entry["selector"] = selector
			}
		}
		entries = append(entries, entry)
	}
	return hooktest.Custom("cilium.io/v2", "CiliumBGPAdvertisement", "adv", map[string]any{"advertisements": entries}, nil)
}

func labelled(key, value string) map[string]any {
	return map[string]any{"matchLabels": map[string]any{key: value}}
}

func avoiding(more map[string]any) map[string]any {
	selector := map[string]any{"matchExpressions": []any{map[string]any{"key": lbhooks.ExcludeLabel, "operator": "DoesNotExist"}}}
	for k, v := range more {
		selector[k] = v
	}
	return selector
}

func clusterConfig(nodeSelector map[string]any) *unstructured.Unstructured {
	spec := map[string]any{}
	if nodeSelector != nil {
		spec["nodeSelector"] = nodeSelector
	}
	return hooktest.Custom("cilium.io/v2", "CiliumBGPClusterConfig", "cc", spec, nil)
}

func nodeConfig(node string) *unstructured.Unstructured {
	return hooktest.Custom("cilium.io/v2", "CiliumBGPNodeConfig", node, map[string]any{}, nil)
}

func l2Policy(nodeSelector map[string]any) *unstructured.Unstructured {
	spec := map[string]any{"loadBalancerIPs": true}
	if nodeSelector != nil {
		spec["nodeSelector"] = nodeSelector
	}
	return hooktest.Custom("cilium.io/v2alpha1", "CiliumL2AnnouncementPolicy", "l2", spec, nil)
}

func lease(name, holder string) *unstructured.Unstructured {
	u := hooktest.Custom("coordination.k8s.io/v1", "Lease", name, map[string]any{"holderIdentity": holder}, nil)
	u.SetNamespace("kube-system")
	return u
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

type expectation struct {
	svc         *corev1.Service
	objects     []*unstructured.Unstructured
	conditions  discoveryv1.EndpointConditions // of the endpoint on n1
	seats       string                         // "" when it does not match
	label       bool                           // removal by label, which is proven
	grace       string                         // how the balancer forgets by itself
	says        string
	unsupported bool
}

func (e *expectation) check(t *testing.T, hook lbhooks.Hook) {
	t.Helper()
	svc := e.svc
	if svc == nil {
		svc = service()
	}
	o := &hooktest.Objects{AllNodes: nodes(), Customs: e.objects, AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(svc, e.conditions, "n1")}}
	r, ok := hook.Match(svc, o)
	if !ok {
		if e.seats != "" {
			t.Fatal("does not match")
		}
		return
	}
	if got := seats(&r); got != e.seats {
		t.Errorf("seats %q, want %q", got, e.seats)
	}
	want := lbhooks.RemovalNone
	if e.label {
		want = lbhooks.RemovalLabel
	}
	if r.Removal != want || r.Provable != e.label {
		t.Errorf("removal %s, provable %t; want %s, %t", r.Removal, r.Provable, want, e.label)
	}
	if got := r.HealthCheck; (got == nil) != (e.grace == "") || got != nil && !strings.HasPrefix(got.String(), e.grace) {
		t.Errorf("grace %v, want %q", got, e.grace)
	}
	if all := fmt.Sprint(r.Reason, "; ", r.Evidence, "; ", r.NoProof); !strings.Contains(all, e.says) {
		t.Errorf("%q, want %q in it", all, e.says)
	}
	if (r.Unsupported != "") != e.unsupported {
		t.Errorf("unsupported %q, want %t", r.Unsupported, e.unsupported)
	}
}

// Sources: Cilium pkg/bgp/manager/reconciler/service.go (selectors, classes, hasBackends, getLoadBalancerIPPaths);
// Documentation/network/l2-announcements.rst (policy Local).
func TestMatchBGP(t *testing.T) {
	yes, no := true, false
	adv, all, grace := advertisement(labelled("bgp", "yes"), "Service"), clusterConfig(nil), "every 5s, out after 1 failures"
	for name, test := range map[string]expectation{
		"policy Local":               {objects: []*unstructured.Unstructured{adv, all}, seats: "Y+ N+ N+", grace: grace, says: "no label takes a node out"},
		"terminating is not active":  {objects: []*unstructured.Unstructured{adv, all}, conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}, seats: "N+ N+ N+", grace: grace},
		"published, but terminating": {objects: []*unstructured.Unstructured{adv, all}, conditions: discoveryv1.EndpointConditions{Ready: &yes, Terminating: &yes}, seats: "N+ N+ N+", grace: grace},
		"policy Cluster":             {svc: service(cluster), objects: []*unstructured.Unstructured{adv, all}, seats: "Y+ Y+ Y+"},
		"some nodes have sessions":   {objects: []*unstructured.Unstructured{adv, all, nodeConfig("n1"), nodeConfig("n2")}, seats: "Y+ N+ N", grace: grace},
		"some nodes are selected":    {objects: []*unstructured.Unstructured{adv, clusterConfig(labelled("rack", "a"))}, seats: "Y+ N+ N", grace: grace},
		"the label is a lever":       {objects: []*unstructured.Unstructured{adv, clusterConfig(avoiding(nil))}, seats: "Y+ N+ N+", label: true, says: "the label ends the sessions"},
		"a lever where it counts":    {objects: []*unstructured.Unstructured{adv, clusterConfig(avoiding(labelled("rack", "a")))}, seats: "Y+ N+ N", label: true},
		"a second one ignores it":    {objects: []*unstructured.Unstructured{adv, clusterConfig(avoiding(nil)), clusterConfig(nil)}, seats: "Y+ N+ N+", grace: grace},
		"pods hang on the sessions":  {objects: []*unstructured.Unstructured{adv, advertisement(nil, "PodCIDR"), clusterConfig(avoiding(nil))}, seats: "Y+ N+ N+", grace: grace, says: "advertises pods over them"},
		"a lever, policy Cluster":    {svc: service(cluster), objects: []*unstructured.Unstructured{adv, clusterConfig(avoiding(nil))}, seats: "Y+ Y+ Y+", label: true},
		"a time is stated": {svc: service(func(s *corev1.Service) {
			s.Annotations[lbhooks.AnnotationHealthCheck] = "interval=20s,unhealthy=1,timeout=1s"
		}), objects: []*unstructured.Unstructured{adv, all}, seats: "Y+ N+ N+", grace: "every 20s"},
		"no selector, no Service":     {objects: []*unstructured.Unstructured{advertisement(nil, "Service"), all}, seats: ""},
		"another label":               {objects: []*unstructured.Unstructured{advertisement(labelled("bgp", "no"), "Service"), all}, seats: ""},
		"by the name of the Service":  {objects: []*unstructured.Unstructured{advertisement(labelled("io.kubernetes.service.name", "lb"), "Service"), all}, seats: "Y+ N+ N+", grace: grace},
		"its class":                   {svc: service(class("io.cilium/bgp-control-plane")), objects: []*unstructured.Unstructured{adv, all}, seats: "Y+ N+ N+", grace: grace},
		"its class, no advertisement": {svc: service(class("io.cilium/bgp-control-plane")), objects: []*unstructured.Unstructured{advertisement(labelled("bgp", "no"), "Service"), all}, seats: "N N N", says: "nobody advertises it"},
		"another class":               {svc: service(class("x/y")), objects: []*unstructured.Unstructured{adv, all}, seats: ""},
		"no address yet":              {svc: service(func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }), objects: []*unstructured.Unstructured{adv, all}, seats: ""},
		"announced by L2 as well":     {objects: []*unstructured.Unstructured{adv, all, l2Policy(nil)}, seats: "Y+ N+ N+", grace: grace, unsupported: true},
		"by L2 as well, Cluster":      {svc: service(cluster), objects: []*unstructured.Unstructured{adv, all, l2Policy(nil)}, seats: "Y+ Y+ Y+"},
		"nothing of Cilium":           {seats: ""},
	} {
		t.Run(name, func(t *testing.T) { test.check(t, cilium.NewBGP(nil)) })
	}
}

func TestMatchL2(t *testing.T) {
	for name, test := range map[string]expectation{
		"policy Local":            {objects: []*unstructured.Unstructured{l2Policy(nil)}, seats: "?+ ?+ ?+", unsupported: true},
		"policy Cluster":          {svc: service(cluster), objects: []*unstructured.Unstructured{l2Policy(nil), lease("cilium-l2announce-t-lb", "n2")}, seats: "N+ Y+ N+", says: "is held by n2"},
		"some nodes are selected": {svc: service(cluster), objects: []*unstructured.Unstructured{l2Policy(labelled("rack", "a")), lease("cilium-l2announce-t-lb", "n2")}, seats: "N+ Y+ N"},
		"the label is a lever":    {svc: service(cluster), objects: []*unstructured.Unstructured{l2Policy(avoiding(nil)), lease("cilium-l2announce-t-lb", "n2")}, seats: "N+ Y+ N+", label: true},
		"nobody holds it":         {svc: service(cluster), objects: []*unstructured.Unstructured{l2Policy(nil), lease("cilium-l2announce-t-x", "n2")}, seats: "N+ N+ N+", says: "nobody holds"},
		"no lease at hand":        {svc: service(cluster), objects: []*unstructured.Unstructured{l2Policy(nil)}, seats: "?+ ?+ ?+"},
		"its class":               {svc: service(cluster, class("io.cilium/l2-announcer")), seats: "?+ ?+ ?+", says: "class"},
		"another class":           {svc: service(cluster, class("x/y")), objects: []*unstructured.Unstructured{l2Policy(nil)}, seats: ""},
		"external addresses only": {objects: []*unstructured.Unstructured{hooktest.Custom("cilium.io/v2alpha1", "CiliumL2AnnouncementPolicy", "l2", map[string]any{"externalIPs": true}, nil)}, seats: ""},
	} {
		t.Run(name, func(t *testing.T) { test.check(t, cilium.NewL2(nil, clock.RealClock{})) })
	}
}
