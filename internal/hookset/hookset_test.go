package hookset_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

func custom(group, kind string, spec, status map[string]any, labels map[string]string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": kind, "spec": spec, "status": status}}
	u.SetName(strings.ToLower(kind))
	u.SetLabels(labels)
	return u
}

// metalLB is a MetalLB that announces e/a by L2 from n1.
func metalLB() []*unstructured.Unstructured {
	return []*unstructured.Unstructured{
		custom("metallb.io", "IPAddressPool", map[string]any{"addresses": []any{"192.0.2.0/24"}}, nil, nil),
		custom("metallb.io", "L2Advertisement", map[string]any{}, nil, nil),
		custom("metallb.io", "ServiceL2Status", nil, map[string]any{"node": "n1", "serviceName": "a", "serviceNamespace": "e"},
			map[string]string{"metallb.io/node": "n1", "metallb.io/service-name": "a", "metallb.io/service-namespace": "e"}),
	}
}

func ciliumPolicy(spec map[string]any) *unstructured.Unstructured {
	return custom("cilium.io", "CiliumL2AnnouncementPolicy", spec, nil, nil)
}

func calicoBGP(cidr string) *unstructured.Unstructured {
	u := custom("crd.projectcalico.org", "BGPConfiguration", map[string]any{"serviceLoadBalancerIPs": []any{map[string]any{"cidr": cidr}}}, nil, nil)
	u.SetName("default")
	return u
}

func svclb(node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "svclb", Labels: map[string]string{"svccontroller.k3s.cattle.io/svcname": "a", "svccontroller.k3s.cattle.io/svcnamespace": "e"}}}
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

func nodes(providerID string) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range []string{"n1", "n2", "n3"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": "edge"}}}
		if name == "n3" {
			n.Labels["role"] = "inner"
		}
		n.Spec.ProviderID = providerID
		out = append(out, n)
	}
	return out
}

// service is e/a, of policy Local, with an address of MetalLB's pool if it is a load balancer.
func service(kind corev1.ServiceType, annotations ...string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "a", Annotations: map[string]string{}}}
	for i := 0; i < len(annotations); i += 2 {
		svc.Annotations[annotations[i]] = annotations[i+1]
	}
	svc.Spec.Type = kind
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	if kind == corev1.ServiceTypeLoadBalancer {
		svc.Spec.HealthCheckNodePort = 32000
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
	}
	return svc
}

func class(svc *corev1.Service, name string) *corev1.Service {
	svc.Spec.LoadBalancerClass = &name
	return svc
}

const (
	lb       = corev1.ServiceTypeLoadBalancer
	nodePort = corev1.ServiceTypeNodePort
)

// seats writes the seats of n1, n2 and n3: Y, N or ? for in rotation, + for eligible.
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

func TestMatch(t *testing.T) {
	clusterIP := service(corev1.ServiceTypeClusterIP)
	externalIPs := service(corev1.ServiceTypeClusterIP)
	externalIPs.Spec.ExternalIPs = []string{"198.51.100.9"}
	plain := service(lb)
	plain.Status = corev1.ServiceStatus{}
	for name, test := range map[string]struct {
		svc      *corev1.Service
		provider string
		custom   []*unstructured.Unstructured
		agents   []*corev1.Pod
		override map[string]string
		disabled []string
		hook     string
		seats    string
		removal  any // RemovalNone when left out
		broken   string
		reason   string
		check    func(lbhooks.Rotation) bool
	}{
		"specific before generic":   {svc: service(lb), provider: "openstack:///x", custom: metalLB(), hook: "metallb-l2", seats: "Y+ N+ N+", removal: lbhooks.RemovalLabel},
		"generic":                   {svc: service(lb), provider: "openstack:///x", hook: "cloud-provider", seats: "Y+ Y+ Y+", removal: lbhooks.RemovalLabel},
		"two specific hooks":        {svc: service(lb), custom: metalLB(), agents: []*corev1.Pod{svclb("n1")}, hook: "metallb-l2", seats: "?+ ?+ ?+", check: func(r lbhooks.Rotation) bool { return slices.Equal(r.Conflict, []string{"metallb-l2", "service-lb"}) }},
		"annotation ends a quarrel": {svc: service(lb, lbhooks.AnnotationHook, "service-lb"), custom: metalLB(), agents: []*corev1.Pod{svclb("n2")}, hook: "service-lb", seats: "N N+ N", check: func(r lbhooks.Rotation) bool { return len(r.Conflict) == 0 }},
		"disabled":                  {svc: service(lb), custom: metalLB(), disabled: []string{"metallb-l2", "cloud-provider"}, hook: "", seats: "?+ ?+ ?+"},
		"disabled, but named":       {svc: service(lb, lbhooks.AnnotationHook, "metallb-l2"), custom: metalLB(), disabled: []string{"metallb-l2"}, hook: "metallb-l2", seats: "Y+ N+ N+", removal: lbhooks.RemovalLabel},

		"annotation names a hook that never matches by itself": {svc: service(lb, lbhooks.AnnotationHook, "health-check"), custom: metalLB(), hook: "health-check", seats: "Y+ N+ N+", removal: lbhooks.RemovalHealthCheck, reason: "annotation safedrain.dev/hook"},
		"annotation names the generic hook":                    {svc: class(service(lb, lbhooks.AnnotationHook, "cloud-provider"), "x"), hook: "cloud-provider", seats: "Y+ Y+ Y+", removal: lbhooks.RemovalLabel},
		"annotation names what is not there":                   {svc: service(lb, lbhooks.AnnotationHook, "metallb-bgp"), hook: "metallb-bgp", seats: "?+ ?+ ?+", broken: "nothing of metallb-bgp"},
		"annotation names an unknown hook":                     {svc: service(lb, lbhooks.AnnotationHook, "metalb"), custom: metalLB(), hook: "metalb", seats: "?+ ?+ ?+", broken: "no hook of that name; known: "},
		"annotation is empty":                                  {svc: service(lb, lbhooks.AnnotationHook, ""), custom: metalLB(), hook: "metallb-l2", seats: "Y+ N+ N+", removal: lbhooks.RemovalLabel},
		"annotation says none":                                 {svc: service(lb, lbhooks.AnnotationHook, "none"), custom: metalLB(), hook: "", seats: "?+ ?+ ?+"},
		"flag beats annotation":                                {svc: service(lb, lbhooks.AnnotationHook, "metallb-l2"), custom: metalLB(), override: map[string]string{"e/a": "health-check"}, hook: "health-check", seats: "Y+ N+ N+", removal: lbhooks.RemovalHealthCheck, reason: "flag --hook"},
		"flag for all":                                         {svc: service(lb), custom: metalLB(), override: map[string]string{hookset.Every: "health-check"}, hook: "health-check", seats: "Y+ N+ N+", removal: lbhooks.RemovalHealthCheck},
		"flag for one beats flag for all":                      {svc: service(lb), custom: metalLB(), override: map[string]string{hookset.Every: "health-check", "e/a": "metallb-l2"}, hook: "metallb-l2", seats: "Y+ N+ N+", removal: lbhooks.RemovalLabel},
		"flag for another":                                     {svc: service(lb), custom: metalLB(), override: map[string]string{"e/b": "health-check"}, hook: "metallb-l2", seats: "Y+ N+ N+", removal: lbhooks.RemovalLabel},

		"NodePort":                   {svc: service(nodePort), custom: metalLB()[:2], seats: "?+ ?+ ?+", reason: "type NodePort"},
		"externalIPs":                {svc: externalIPs, seats: "?+ ?+ ?+", reason: "externalIPs"},
		"ClusterIP":                  {svc: clusterIP, seats: "?+ ?+ ?+", reason: "not reachable"},
		"unknown class":              {svc: class(service(lb), "other.example/x"), provider: "aws:///x", seats: "?+ ?+ ?+", reason: `"other.example/x"`},
		"load balancer, nothing yet": {svc: plain, seats: "?+ ?+ ?+", reason: "nothing shows who fronts it"},

		"declared nodes":                 {svc: service(nodePort, lbhooks.AnnotationNodes, "role=edge"), seats: "Y+ Y+ N", check: func(r lbhooks.Rotation) bool { return r.Declared && !r.Nobody && !r.Follows }},
		"declared nodes behind a hook":   {svc: service(lb, lbhooks.AnnotationNodes, "role in (inner)"), custom: metalLB(), hook: "metallb-l2", seats: "N N Y+", removal: lbhooks.RemovalLabel, check: func(r lbhooks.Rotation) bool { return r.Declared && !r.Follows }},
		"nobody sends":                   {svc: service(nodePort, lbhooks.AnnotationNodes, "none"), seats: "N N N", check: func(r lbhooks.Rotation) bool { return r.Nobody && !r.Declared }},
		"a selector that cannot be read": {svc: service(nodePort, lbhooks.AnnotationNodes, "role=edge=x"), seats: "?+ ?+ ?+", broken: "is not a label selector"},
		"an empty selector":              {svc: service(nodePort, lbhooks.AnnotationNodes, " "), seats: "?+ ?+ ?+", broken: "is not a label selector"},
		"a selector of no node":          {svc: service(nodePort, lbhooks.AnnotationNodes, "role=egde"), seats: "?+ ?+ ?+", broken: "selects no node"},

		"settle":                {svc: service(nodePort, lbhooks.AnnotationSettle, "90s"), seats: "?+ ?+ ?+", check: func(r lbhooks.Rotation) bool { return r.Settle != nil && *r.Settle == 90*time.Second }},
		"settle zero":           {svc: service(nodePort, lbhooks.AnnotationSettle, "0s"), seats: "?+ ?+ ?+", check: func(r lbhooks.Rotation) bool { return r.Settle != nil && *r.Settle == 0 }},
		"settle without a unit": {svc: service(nodePort, lbhooks.AnnotationSettle, "90"), seats: "?+ ?+ ?+", broken: "is not a duration", check: func(r lbhooks.Rotation) bool { return r.Settle == nil }},
		"settle below zero":     {svc: service(nodePort, lbhooks.AnnotationSettle, "-1s"), seats: "?+ ?+ ?+", broken: "is not a duration"},
		"both are wrong":        {svc: service(nodePort, lbhooks.AnnotationSettle, "x", lbhooks.AnnotationNodes, "!!"), seats: "?+ ?+ ?+", broken: "; annotation safedrain.dev/settle"},

		"cilium l2 by class":          {svc: class(service(lb), "io.cilium/l2-announcer"), hook: "cilium-l2", seats: "?+ ?+ ?+", check: unsupported(true)},
		"cilium l2 by policy":         {svc: service(lb), provider: "openstack:///x", custom: []*unstructured.Unstructured{ciliumPolicy(map[string]any{"loadBalancerIPs": true})}, hook: "cilium-l2", seats: "?+ ?+ ?+", check: unsupported(true)},
		"cilium l2, policy of others": {svc: service(lb), custom: []*unstructured.Unstructured{ciliumPolicy(map[string]any{"loadBalancerIPs": true, "serviceSelector": map[string]any{"matchLabels": map[string]any{"x": "y"}}})}, hook: "cloud-provider", seats: "Y+ Y+ Y+", removal: lbhooks.RemovalLabel, check: unsupported(false)},
		"cilium l2, externalIPs only": {svc: service(lb), custom: []*unstructured.Unstructured{ciliumPolicy(map[string]any{"externalIPs": true})}, hook: "cloud-provider", seats: "Y+ Y+ Y+", removal: lbhooks.RemovalLabel, check: unsupported(false)},
		"cilium l2 of policy Cluster": {svc: clusterPolicy(class(service(lb), "io.cilium/l2-announcer")), hook: "cilium-l2", seats: "?+ ?+ ?+", check: unsupported(false)},
		"calico advertises what metallb hands out": {svc: service(lb, "metallb.io/ip-allocated-from-pool", "p"), provider: "x", custom: append(metalLB()[:1:1],
			calicoBGP("192.0.2.0/24")), hook: "calico", seats: "Y+ N+ N+", removal: lbhooks.RemovalLabel, check: func(r lbhooks.Rotation) bool { return len(r.Conflict) == 0 }},
		"calico and metallb advertise it": {svc: service(lb), custom: append(metalLB(), calicoBGP("192.0.2.0/24")), hook: "calico", seats: "?+ ?+ ?+", check: func(r lbhooks.Rotation) bool {
			return slices.Equal(r.Conflict, []string{"calico", "metallb-l2"}) && strings.Contains(r.Reason, "serviceLoadBalancerIPs") && strings.Contains(r.Reason, "ServiceL2Status")
		}},
		"metallb beside a cilium policy": {svc: service(lb), custom: append(metalLB(), ciliumPolicy(map[string]any{"loadBalancerIPs": true})), hook: "metallb-l2", seats: "Y+ N+ N+", removal: lbhooks.RemovalLabel, check: unsupported(false)},
	} {
		t.Run(name, func(t *testing.T) {
			set := hookset.New(hookset.Deps{Override: test.override, Disabled: test.disabled})
			r := set.Match(test.svc, &hooktest.Objects{
				AllNodes: nodes(test.provider), Customs: test.custom, Pods: map[string][]*corev1.Pod{"service-lb": test.agents},
				AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(test.svc, discoveryv1.EndpointConditions{}, "n1")},
			})
			if test.removal == nil {
				test.removal = lbhooks.RemovalNone
			}
			if r.Hook != test.hook || r.Removal != test.removal || seats(r) != test.seats {
				t.Errorf("hook %q, removal %s, seats %s; want %q, %s, %s", r.Hook, r.Removal, seats(r), test.hook, test.removal, test.seats)
			}
			if test.broken == "" && r.Broken != "" || !strings.Contains(r.Broken, test.broken) {
				t.Errorf("broken %q, want %q", r.Broken, test.broken)
			}
			if r.Reason == "" || !strings.Contains(r.Reason, test.reason) {
				t.Errorf("reason %q, want %q", r.Reason, test.reason)
			}
			if test.check != nil && !test.check(r) {
				t.Errorf("%+v", r)
			}
		})
	}
}

func unsupported(want bool) func(lbhooks.Rotation) bool {
	return func(r lbhooks.Rotation) bool { return (r.Unsupported != "") == want }
}

func clusterPolicy(svc *corev1.Service) *corev1.Service {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	return svc
}

func TestParseOverrides(t *testing.T) {
	for name, test := range map[string]struct {
		values []string
		want   map[string]string
		says   string
	}{
		"none":                {want: map[string]string{}},
		"one":                 {values: []string{"e/a=health-check"}, want: map[string]string{"e/a": "health-check"}},
		"all, and one":        {values: []string{"cloud-provider", "e/a=none"}, want: map[string]string{hookset.Every: "cloud-provider", "e/a": "none"}},
		"twice the same":      {values: []string{"cloud-provider", "cloud-provider"}, want: map[string]string{hookset.Every: "cloud-provider"}},
		"unknown":             {values: []string{"e/a=f5"}, says: "no hook of that name; known: "},
		"no namespace":        {values: []string{"a=health-check"}, says: "write namespace/name=hook"},
		"too many slashes":    {values: []string{"e/a/b=health-check"}, says: "write namespace/name=hook"},
		"no hook":             {values: []string{"e/a="}, says: "write namespace/name=hook"},
		"empty":               {values: []string{""}, says: "write namespace/name=hook"},
		"two for one service": {values: []string{"e/a=none", "e/a=health-check"}, says: `e/a has the hook "none" already`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := hookset.ParseOverrides(test.values, hookset.Settings{})
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%v, want %q", err, test.says)
				}
				return
			}
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v, -want +got\n%s", err, diff)
			}
		})
	}
}

// The map's keys are the names that the hooks give themselves, and every need can be turned into a rule of RBAC.
func TestDescriptions(t *testing.T) {
	set := hookset.New(hookset.Deps{})
	for _, name := range set.Names() {
		hook, ok := set.Hook(name)
		if !ok || hook.Describe().Name != name {
			t.Errorf("%q describes itself as %q", name, hook.Describe().Name)
		}
	}
	all := set.Descriptions()
	if !slices.IsSortedFunc(all, func(a, b lbhooks.Description) int { return strings.Compare(a.Name, b.Name) }) || len(all) != len(set.Names()) {
		t.Errorf("%d descriptions: %v", len(all), all)
	}
	for _, d := range all {
		for _, n := range d.Needs {
			if n.Version == "" || n.Resource == "" || n.Kind == "" || len(n.Verbs) == 0 || n.Why == "" {
				t.Errorf("%s: incomplete need %+v", d.Name, n)
			}
		}
	}
}
