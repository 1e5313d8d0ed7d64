package metallb_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
)

const (
	poolYAML = `{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: pool, labels: {tier: front}}, spec: {addresses: [192.0.2.0/24, 198.51.100.5-198.51.100.9]}}`
	l2YAML   = `{apiVersion: metallb.io/v1beta1, kind: L2Advertisement, metadata: {name: l2}, spec: {ipAddressPools: [pool]}}`
	bgpYAML  = `{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: bgp}, spec: {ipAddressPools: [pool]}}`
	peerYAML = `{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: tor}, spec: {peerAddress: 10.0.0.254}}`
)

func statusYAML(kind, service, node string) string {
	return fmt.Sprintf(`{apiVersion: metallb.io/v1beta1, kind: %s, metadata: {name: s-%s-%s, namespace: metallb-system, labels: {metallb.io/node: %s, metallb.io/service-name: %s, metallb.io/service-namespace: e}}, status: {node: %s, serviceName: %s, serviceNamespace: e}}`,
		kind, service, node, node, service, node, service)
}

func frrYAML(node, config string) string {
	return fmt.Sprintf(`{apiVersion: frrk8s.metallb.io/v1beta1, kind: FRRNodeState, metadata: {name: %s}, status: {runningConfig: %q}}`, node, config)
}

func customs(t *testing.T, docs ...string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for _, doc := range docs {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		out = append(out, u)
	}
	return out
}

// nodes makes nodes n1, n2 and n3, and changes each.
func nodes(change func(*corev1.Node)) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range []string{"n1", "n2", "n3"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		if change != nil {
			change(n)
		}
		out = append(out, n)
	}
	return out
}

// only changes one node.
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

func gw(change ...func(*corev1.Service)) *corev1.Service {
	svc := target().Service
	svc.Annotations = map[string]string{"metallb.io/ip-allocated-from-pool": "pool"}
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	for _, c := range change {
		c(svc)
	}
	return svc
}

func speaker(node string, args ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "speaker-" + node}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "speaker", Args: args}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

func speakersOn(names ...string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, n := range names {
		out = append(out, speaker(n))
	}
	return out
}

var ready = discoveryv1.EndpointConditions{}

// matchAny asks both hooks and wants at most one to match.
func matchAny(t *testing.T, svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	t.Helper()
	l2, byL2 := metallb.NewL2(nil, nil).Match(svc, objects)
	bgp, byBGP := metallb.NewBGP(nil, nil).Match(svc, objects)
	if byL2 && byBGP {
		t.Fatal("both hooks match")
	}
	if byBGP {
		return bgp, true
	}
	return l2, byL2
}

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

// Sources: MetalLB v0.15.3 and v0.16.2 speaker/layer2_controller.go, speaker/bgp_controller.go, internal/config/config.go,
// internal/k8s/nodes, internal/k8s/controllers/service_controller.go.
func TestSeats(t *testing.T) {
	l2On := func(node string) string { return statusYAML("ServiceL2Status", "gw", node) }
	bgpOn := func(node string) string { return statusYAML("ServiceBGPStatus", "gw", node) }
	selecting := func(kind, spec string) string {
		return fmt.Sprintf(`{apiVersion: metallb.io/v1beta1, kind: %s, metadata: {name: a}, spec: {%s}}`, kind, spec)
	}
	for name, test := range map[string]struct {
		svc    *corev1.Service
		nodes  []*corev1.Node
		custom []string
		agents []*corev1.Pod
		on     []string // endpoints
		hook   string   // "" for no match
		seats  string
	}{
		"l2, the status names the node": {custom: []string{poolYAML, l2YAML, l2On("n1")}, hook: metallb.L2, seats: "Y+ N+ N+"},
		"l2, two statuses for a moment": {custom: []string{poolYAML, l2YAML, l2On("n1"), l2On("n2")}, hook: metallb.L2, seats: "Y+ Y+ N+"},
		"l2, status not filled, its label counts": {
			custom: []string{
				poolYAML, l2YAML,
				`{apiVersion: metallb.io/v1beta1, kind: ServiceL2Status, metadata: {name: s, labels: {metallb.io/node: n2, metallb.io/service-name: gw, metallb.io/service-namespace: e}}}`,
			},
			hook: metallb.L2, seats: "N+ Y+ N+",
		},
		"l2, no status of this kind at all: the election": {custom: []string{poolYAML, l2YAML}, on: []string{"n1", "n2"}, hook: metallb.L2, seats: "N+ Y+ N+"},
		"l2, election among nodes with an endpoint only":  {custom: []string{poolYAML, l2YAML}, on: []string{"n1"}, hook: metallb.L2, seats: "Y+ N+ N+"},
		"l2, statuses of others only: its own may be missing": {
			custom: []string{poolYAML, l2YAML, statusYAML("ServiceL2Status", "other", "n2")},
			on:     []string{"n1"}, hook: metallb.L2, seats: "Y+ N+ N+",
		},
		"bgp, every node named":                    {custom: []string{poolYAML, bgpYAML, peerYAML, bgpOn("n1"), bgpOn("n3")}, hook: metallb.BGP, seats: "Y+ N+ Y+"},
		"bgp, what FRR runs counts too":            {custom: []string{poolYAML, bgpYAML, peerYAML, bgpOn("n1"), frrYAML("n2", "  network 192.0.2.10/32\n")}, hook: metallb.BGP, seats: "Y+ Y+ N+"},
		"bgp, an aggregate brings it too":          {custom: []string{poolYAML, bgpYAML, peerYAML, bgpOn("n1"), frrYAML("n2", "  network 192.0.2.0/24\n")}, hook: metallb.BGP, seats: "Y+ Y+ N+"},
		"bgp, other prefixes and lists do not":     {custom: []string{poolYAML, bgpYAML, peerYAML, bgpOn("n1"), frrYAML("n2", "ip prefix-list all permit 0.0.0.0/0 le 32\n network 0.0.0.0/0\n network 192.0.2.11/32\n")}, hook: metallb.BGP, seats: "Y+ N+ N+"},
		"bgp, no status of this kind at all":       {custom: []string{poolYAML, bgpYAML, peerYAML}, on: []string{"n2", "n3"}, hook: metallb.BGP, seats: "N+ Y+ Y+"},
		"bgp, other Services have a status":        {custom: []string{poolYAML, bgpYAML, peerYAML, statusYAML("ServiceBGPStatus", "other", "n1")}, on: []string{"n2", "n3"}, hook: metallb.BGP, seats: "N+ Y+ Y+"},
		"bgp, other Services have one, FRR shows":  {custom: []string{poolYAML, bgpYAML, peerYAML, statusYAML("ServiceBGPStatus", "other", "n1"), frrYAML("n2", "  network 192.0.2.11/32\n")}, on: []string{"n2", "n3"}, hook: metallb.BGP, seats: "N+ N+ Y+"},
		"bgp, a peer selects nodes":                {custom: []string{poolYAML, bgpYAML, strings.Replace(peerYAML, "spec: {", "spec: {nodeSelectors: [{matchLabels: {rack: a}}], ", 1), bgpOn("n1")}, nodes: nodes(only("n1", label("rack", "a"))), hook: metallb.BGP, seats: "Y+ N N"},
		"bgp, an advertisement to another peer":    {custom: []string{poolYAML, selecting("BGPAdvertisement", "peers: [spine]"), peerYAML, bgpOn("n1")}, hook: metallb.BGP, seats: "Y N N"},
		"bgp advertisement without peer beside l2": {custom: []string{poolYAML, l2YAML, bgpYAML, l2On("n1")}, hook: metallb.L2, seats: "Y+ N+ N+"},
		"that advertisement selects nobody":        {custom: []string{poolYAML, selecting("L2Advertisement", "nodeSelectors: [{matchLabels: {rack: a}}]"), bgpYAML, l2On("n1")}, nodes: nodes(only("n1", label("rack", "a"))), hook: metallb.L2, seats: "Y+ N N"},
		"both: metallb-bgp, seats of both":         {custom: []string{poolYAML, l2YAML, bgpYAML, peerYAML, l2On("n1"), bgpOn("n2")}, hook: metallb.BGP, seats: "Y+ Y+ N+"},
		"label, by presence, also false":           {custom: []string{poolYAML, l2YAML, l2On("n1")}, nodes: nodes(only("n2", label(lbhooks.ExcludeLabel, "false"))), hook: metallb.L2, seats: "Y+ N N+"},
		"labelled and still named":                 {custom: []string{poolYAML, l2YAML, l2On("n1")}, nodes: nodes(only("n1", label(lbhooks.ExcludeLabel, "true"))), hook: metallb.L2, seats: "Y N+ N+"},
		"network unavailable": {custom: []string{poolYAML, l2YAML, l2On("n1")}, nodes: nodes(only("n2", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue}}
		})), hook: metallb.L2, seats: "Y+ N N+"},
		"cordoned and not ready nodes stay eligible": {custom: []string{poolYAML, l2YAML, l2On("n1")}, nodes: nodes(only("n2", func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		})), hook: metallb.L2, seats: "Y+ N+ N+"},
		"virtual node":      {custom: []string{poolYAML, l2YAML, l2On("n1")}, nodes: nodes(only("n3", label("type", "virtual-kubelet"))), hook: metallb.L2, seats: "Y+ N+ N"},
		"no speaker":        {custom: []string{poolYAML, l2YAML, l2On("n1")}, agents: speakersOn("n1", "n3"), hook: metallb.L2, seats: "Y+ N N+"},
		"speaker not ready": {custom: []string{poolYAML, l2YAML, l2On("n1")}, agents: append(speakersOn("n1", "n3"), func() *corev1.Pod { p := speaker("n2"); p.Status.Conditions = nil; return p }()), hook: metallb.L2, seats: "Y+ N N+"},
		"node selectors": {custom: []string{poolYAML, selecting("L2Advertisement", "nodeSelectors: [{matchLabels: {rack: a}}, {matchExpressions: [{key: zone, operator: In, values: [z]}]}]"), l2On("n1")}, nodes: nodes(func(n *corev1.Node) {
			n.Labels[map[string]string{"n1": "rack", "n2": "zone", "n3": "x"}[n.Name]] = map[string]string{"n1": "a", "n2": "z", "n3": ""}[n.Name]
		}), hook: metallb.L2, seats: "Y+ N+ N"},
		"pool selectors":               {custom: []string{poolYAML, selecting("L2Advertisement", "ipAddressPoolSelectors: [{matchLabels: {tier: front}}]"), l2On("n1")}, hook: metallb.L2, seats: "Y+ N+ N+"},
		"advertisement of every pool":  {custom: []string{poolYAML, selecting("L2Advertisement", ""), l2On("n1")}, hook: metallb.L2, seats: "Y+ N+ N+"},
		"advertisement of other pools": {custom: []string{poolYAML, selecting("L2Advertisement", "ipAddressPools: [other]")}, on: []string{"n1"}, hook: metallb.L2, seats: "N N N"},
		"service selectors, v0.16":     {custom: []string{poolYAML, selecting("L2Advertisement", "serviceSelectors: [{matchLabels: {app: x}}]")}, on: []string{"n1"}, hook: metallb.L2, seats: "N N N"},
		"shared address and service selectors": {
			svc: gw(func(s *corev1.Service) {
				s.Labels = map[string]string{"app": "x"}
				s.Annotations["metallb.io/allow-shared-ip"] = "k"
			}),
			custom: []string{poolYAML, selecting("L2Advertisement", "serviceSelectors: [{matchLabels: {app: x}}]")}, on: []string{"n1"}, hook: metallb.L2, seats: "N N N",
		},
		"a bad selector selects nothing":           {custom: []string{poolYAML, l2YAML, selecting("L2Advertisement", "nodeSelectors: [{matchExpressions: [{key: a, operator: Of}]}]"), l2On("n1")}, hook: metallb.L2, seats: "Y+ N+ N+"},
		"annotation only, nothing else at hand":    {hook: metallb.L2, seats: "?+ ?+ ?+"},
		"statuses only, no advertisement at hand":  {custom: []string{l2On("n2")}, hook: metallb.L2, seats: "N+ Y+ N+"},
		"by address in a prefix":                   {svc: gw(func(s *corev1.Service) { s.Annotations = nil }), custom: []string{poolYAML, l2YAML, l2On("n1")}, hook: metallb.L2, seats: "Y+ N+ N+"},
		"by address in a range":                    {svc: gw(func(s *corev1.Service) { s.Annotations = nil; s.Status.LoadBalancer.Ingress[0].IP = "198.51.100.7" }), custom: []string{poolYAML, l2YAML}, hook: metallb.L2, seats: "N+ N+ N+"},
		"address outside every pool":               {svc: gw(func(s *corev1.Service) { s.Annotations = nil; s.Status.LoadBalancer.Ingress[0].IP = "203.0.113.1" }), custom: []string{poolYAML, l2YAML}},
		"not a load balancer":                      {svc: gw(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }), custom: []string{poolYAML, l2YAML}},
		"a class of somebody else":                 {svc: gw(class("other.example/x"), func(s *corev1.Service) { s.Annotations = nil }), custom: []string{poolYAML, l2YAML}, agents: speakersOn("n1")},
		"the class of the speakers":                {svc: gw(class("metallb")), custom: []string{poolYAML, l2YAML, l2On("n1")}, agents: []*corev1.Pod{speaker("n1", "--lb-class=metallb")}, hook: metallb.L2, seats: "Y+ N N"},
		"speakers with a class, service without":   {custom: []string{poolYAML, l2YAML}, agents: []*corev1.Pod{speaker("n1", "--lb-class", "metallb")}},
		"policy Cluster, every node may announce":  {svc: gw(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "" }), custom: []string{poolYAML, bgpYAML, peerYAML}, on: []string{"n1"}, hook: metallb.BGP, seats: "Y+ Y+ Y+"},
		"policy Cluster, no endpoint anywhere":     {svc: gw(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "" }), custom: []string{poolYAML, bgpYAML, peerYAML}, hook: metallb.BGP, seats: "N+ N+ N+"},
		"ignore-exclude-lb: the label bars nobody": {custom: []string{poolYAML, l2YAML, l2On("n1")}, nodes: nodes(only("n2", label(lbhooks.ExcludeLabel, "true"))), agents: []*corev1.Pod{speaker("n1", "--ignore-exclude-lb"), speaker("n2", "--ignore-exclude-lb"), speaker("n3")}, hook: metallb.L2, seats: "Y+ N+ N+"},
	} {
		t.Run(name, func(t *testing.T) {
			svc := test.svc
			if svc == nil {
				svc = gw()
			}
			all := test.nodes
			if all == nil {
				all = nodes(nil)
			}
			r, ok := matchAny(t, svc, &hooktest.Objects{
				AllNodes: all, Customs: customs(t, test.custom...), Pods: map[string][]*corev1.Pod{metallb.L2: test.agents},
				AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(svc, ready, test.on...)},
			})
			if r.Hook != test.hook || ok != (test.hook != "") {
				t.Fatalf("hook %q, matched %t; want %q", r.Hook, ok, test.hook)
			}
			if ok && seats(r) != test.seats {
				t.Errorf("seats %s, want %s\nevidence %s\nreason %s", seats(r), test.seats, r.Evidence, r.Reason)
			}
			if ok && (r.Reason == "" || r.Evidence == "") {
				t.Errorf("reason %q, evidence %q", r.Reason, r.Evidence)
			}
		})
	}
}

func class(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
}

// The label is the lever unless the speakers are told to ignore it; serving endpoints keep the announcement.
func TestRotation(t *testing.T) {
	custom := customs(t, poolYAML, l2YAML, statusYAML("ServiceL2Status", "gw", "n1"))
	for name, test := range map[string]struct {
		agents []*corev1.Pod
		want   lbhooks.Rotation
		says   string
	}{
		"usual":             {agents: speakersOn("n1", "n2", "n3"), want: lbhooks.Rotation{Removal: lbhooks.RemovalLabel, Provable: true, Follows: true, FollowsServing: true}, says: "ServiceL2Status: n1"},
		"speakers unknown":  {want: lbhooks.Rotation{Removal: lbhooks.RemovalLabel, Provable: true, Follows: true, FollowsServing: true}, says: "every node taken to run one"},
		"label is ignored":  {agents: []*corev1.Pod{speaker("n1", "--ignore-exclude-lb")}, want: lbhooks.Rotation{Removal: lbhooks.RemovalNone, Follows: true, FollowsServing: true}, says: "the label does nothing"},
		"flag set to false": {agents: []*corev1.Pod{speaker("n1", "--ignore-exclude-lb=false")}, want: lbhooks.Rotation{Removal: lbhooks.RemovalLabel, Provable: true, Follows: true, FollowsServing: true}},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := matchAny(t, gw(), &hooktest.Objects{AllNodes: nodes(nil), Customs: custom, Pods: map[string][]*corev1.Pod{metallb.L2: test.agents}})
			got := lbhooks.Rotation{Removal: r.Removal, Provable: r.Provable, Follows: r.Follows, FollowsServing: r.FollowsServing}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if !strings.Contains(r.Evidence, test.says) {
				t.Errorf("evidence %q, want %q", r.Evidence, test.says)
			}
		})
	}
}

// The winners were computed apart from this code, as the lowest sha256 of node + "#" + address; source: MetalLB
// speaker/layer2_controller.go ShouldAnnounce, and sortL2Candidates for the preferences of v0.16.2.
func TestMoves(t *testing.T) {
	prefer := strings.Replace(l2YAML, "spec: {", "spec: {preferredNodeSelectors: [{weight: 10, preference: {matchLabels: {fast: disk}}}], ", 1)
	for name, test := range map[string]struct {
		ips     []string
		going   []string
		on      []string
		serving []string // endpoints that terminate and still serve
		ad      string
		nodes   []*corev1.Node
		cluster bool // policy Cluster
		want    []lbhooks.Move
	}{
		"n2 wins .10 among all":                        {ips: []string{"192.0.2.10"}, going: []string{"n1"}, on: []string{"n1", "n2", "n3"}, want: moves("192.0.2.10", "n2")},
		"n3 wins .11 without n1":                       {ips: []string{"192.0.2.11"}, going: []string{"n1"}, on: []string{"n1", "n2", "n3"}, want: moves("192.0.2.11", "n3")},
		"only nodes with an endpoint":                  {ips: []string{"192.0.2.10"}, going: []string{"n1"}, on: []string{"n1", "n3"}, want: moves("192.0.2.10", "n3")},
		"a serving endpoint is enough":                 {ips: []string{"192.0.2.10"}, going: []string{"n1"}, on: []string{"n1", "n3"}, serving: []string{"n2"}, want: moves("192.0.2.10", "n2")},
		"other leaving nodes do not count":             {ips: []string{"192.0.2.10"}, going: []string{"n1", "n2"}, on: []string{"n1", "n2", "n3"}, want: moves("192.0.2.10", "n3")},
		"nobody left":                                  {ips: []string{"192.0.2.10"}, going: []string{"n1"}, on: []string{"n1"}, want: moves("192.0.2.10", "")},
		"dual stack goes by the first":                 {ips: []string{"192.0.2.11", "2001:db8::10"}, going: []string{"n1"}, on: []string{"n1", "n2", "n3"}, want: append(moves("192.0.2.11", "n3"), moves("2001:db8::10", "n3")...)},
		"preference beats the hash, v0.16":             {ips: []string{"192.0.2.10"}, going: []string{"n1"}, on: []string{"n1", "n2", "n3"}, ad: prefer, nodes: nodes(only("n3", label("fast", "disk"))), want: moves("192.0.2.10", "n3")},
		"policy Cluster moves before its endpoints go": {ips: []string{"192.0.2.10"}, going: []string{"n1"}, on: []string{"n1"}, cluster: true, want: moves("192.0.2.10", "n2")},
		"the announcing node stays":                    {ips: []string{"192.0.2.10"}, going: []string{"n2"}, on: []string{"n1", "n2", "n3"}},
		"an excluded node cannot take over":            {ips: []string{"192.0.2.10"}, going: []string{"n1"}, on: []string{"n1", "n2", "n3"}, nodes: nodes(only("n2", label(lbhooks.ExcludeLabel, "false"))), want: moves("192.0.2.10", "n3")},
	} {
		t.Run(name, func(t *testing.T) {
			svc := gw()
			svc.Status.LoadBalancer.Ingress = nil
			if test.cluster {
				svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
			}
			for _, ip := range test.ips {
				svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
			}
			no, yes := false, true
			ad, all := test.ad, test.nodes
			if ad == "" {
				ad = l2YAML
			}
			if all == nil {
				all = nodes(nil)
			}
			r, _ := matchAny(t, svc, &hooktest.Objects{
				AllNodes: all, Going: test.going, Customs: customs(t, poolYAML, ad, statusYAML("ServiceL2Status", "gw", "n1")),
				AllSlices: []*discoveryv1.EndpointSlice{
					hooktest.Slice(svc, ready, test.on...),
					hooktest.Slice(svc, discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}, test.serving...),
					hooktest.Slice(svc, discoveryv1.EndpointConditions{Ready: &no, Serving: &no}, "n2", "n3"),
				},
			})
			if diff := cmp.Diff(test.want, r.Moves); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func moves(address, to string) []lbhooks.Move {
	return []lbhooks.Move{{Address: address, From: "n1", To: to}}
}

// A large cluster: what a Service costs must not grow with the number of nodes that are as they should be.
func TestSeatsAreFew(t *testing.T) {
	var all []*corev1.Node
	for i := range 2000 {
		all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%04d", i)}})
	}
	all[7].Labels = map[string]string{lbhooks.ExcludeLabel: "true"}
	r, _ := matchAny(t, gw(), &hooktest.Objects{AllNodes: all, Customs: customs(t, poolYAML, l2YAML, statusYAML("ServiceL2Status", "gw", "m0003"))})
	if len(r.Seats)+len(r.Shared) != 2 || !r.Rest.Eligible {
		t.Errorf("%d seats, rest %+v; want the announcing and the excluded node only", len(r.Seats)+len(r.Shared), r.Rest)
	}
}
