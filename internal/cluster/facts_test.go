package cluster

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

var cmpAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

var claimTime = time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC)

func TestNodeFacts(t *testing.T) {
	value := func(s string) *string { return &s }
	for name, test := range map[string]struct {
		node string
		want guard.NodeFacts
	}{
		"ready": {
			`{status: {conditions: [{type: Ready, status: "True"}]}}`,
			guard.NodeFacts{Ready: true},
		},
		"unreachable":             {`{status: {conditions: [{type: Ready, status: Unknown}]}}`, guard.NodeFacts{Unreachable: true}},
		"not ready":               {`{status: {conditions: [{type: Ready, status: "False"}]}}`, guard.NodeFacts{}},
		"cordoned alone stays":    {`{spec: {unschedulable: true}}`, guard.NodeFacts{Cordoned: true}},
		"excluded alone stays":    {`{metadata: {labels: {node.kubernetes.io/exclude-from-external-load-balancers: "false"}}}`, guard.NodeFacts{Excluded: value("false")}},
		"scale down":              {`{spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}}`, guard.NodeFacts{Leaving: guard.LeavingScaleDown}},
		"disrupted":               {`{spec: {taints: [{key: karpenter.sh/disrupted, effect: NoSchedule}]}}`, guard.NodeFacts{Leaving: guard.LeavingDisrupted}},
		"out of service":          {`{spec: {taints: [{key: node.kubernetes.io/out-of-service, effect: NoExecute}]}}`, guard.NodeFacts{Leaving: guard.LeavingOutOfSvc}},
		"another taint":           {`{spec: {taints: [{key: example.com/x, effect: NoSchedule}]}}`, guard.NodeFacts{}},
		"being deleted":           {`{metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}}`, guard.NodeFacts{Leaving: guard.LeavingDeleted}},
		"claimed and cordoned":    {`{metadata: {annotations: {safedrain.dev/drain: '{"run":"7f3a"}'}}, spec: {unschedulable: true}}`, guard.NodeFacts{Cordoned: true, Leaving: guard.LeavingClaimed, Claim: &guard.Claim{Run: "7f3a"}}},
		"claimed and excluded":    {`{metadata: {annotations: {safedrain.dev/drain: '{"run":"7f3a"}'}, labels: {node.kubernetes.io/exclude-from-external-load-balancers: "true"}}}`, guard.NodeFacts{Excluded: value("true"), Leaving: guard.LeavingClaimed, Claim: &guard.Claim{Run: "7f3a"}}},
		"claimed and schedulable": {`{metadata: {annotations: {safedrain.dev/drain: '{"run":"7f3a"}'}}}`, guard.NodeFacts{Claim: &guard.Claim{Run: "7f3a"}}},
		"a whole claim":           {`{metadata: {annotations: {safedrain.dev/drain: '{"v":1,"run":"r","holder":"h","nodes":["a","b"],"phase":"granted","set":["label"]}'}}, spec: {unschedulable: true}}`, guard.NodeFacts{Cordoned: true, Leaving: guard.LeavingClaimed, Claim: &guard.Claim{Run: "r", Holder: "h", Nodes: []string{"a", "b"}, Phase: "granted", Labelled: true}}},
		"what a claim says of Services": {
			`{metadata: {annotations: {safedrain.dev/drain: '{"v":1,"run":"r","ended":"2026-11-30T14:02:07Z","free":["e/f","x"],"services":{"e/a":{"hook":"h","since":"2026-11-30T14:02:07Z","unproven":true},"e/b":{"hook":"h","since":"2026-11-30T14:02:07Z","proofAt":"2026-11-30T14:02:07Z"},"e/c":{"hook":"h","since":"2026-11-30T14:02:07Z","released":true},"e/old":{"hook":"h","proofAt":"2026-11-30T14:02:07Z"}}}'}}}`,
			guard.NodeFacts{Claim: &guard.Claim{Run: "r", Ended: true, Services: map[guard.Key]guard.ClaimedService{
				{Namespace: "e", Name: "f"}:   {Released: true},
				{Namespace: "e", Name: "a"}:   {Hook: "h", Since: &claimTime, Unproven: true},
				{Namespace: "e", Name: "b"}:   {Hook: "h", Since: &claimTime, ProofAt: &claimTime},
				{Namespace: "e", Name: "c"}:   {Hook: "h", Since: &claimTime, Released: true},
				{Namespace: "e", Name: "old"}: {Hook: "h", ProofAt: &claimTime, Released: true},
			}}},
		},
		"a newer claim says nothing of Services": {`{metadata: {annotations: {safedrain.dev/drain: '{"v":9,"run":"r","services":{"e/a":{"released":true}}}'}}}`, guard.NodeFacts{Claim: &guard.Claim{Run: "r"}}},
		"a claim of another shape":               {`{metadata: {annotations: {safedrain.dev/drain: '{"v":9,"run":"r","nodes":{"a":1}}'}}, spec: {unschedulable: true}}`, guard.NodeFacts{Cordoned: true, Leaving: guard.LeavingClaimed, Claim: &guard.Claim{Run: "r"}}},
		"a claim nobody can read":                {`{metadata: {annotations: {safedrain.dev/drain: 'x'}}, spec: {unschedulable: true}}`, guard.NodeFacts{Cordoned: true, Leaving: guard.LeavingClaimed, Claim: &guard.Claim{}}},
		"deleted goes before claimed":            {`{metadata: {deletionTimestamp: "2026-01-01T00:00:00Z", annotations: {safedrain.dev/drain: 'x'}}, spec: {unschedulable: true}}`, guard.NodeFacts{Cordoned: true, Leaving: guard.LeavingDeleted, Claim: &guard.Claim{}}},
		"virtual by label":                       {`{metadata: {labels: {type: virtual-kubelet}}}`, guard.NodeFacts{Virtual: true}},
		"virtual by taint":                       {`{spec: {taints: [{key: virtual-kubelet.io/provider, effect: NoSchedule}]}}`, guard.NodeFacts{Virtual: true}},
		"control plane":                          {`{metadata: {labels: {node-role.kubernetes.io/control-plane: ""}}}`, guard.NodeFacts{ControlPlane: true}},
		"master":                                 {`{metadata: {labels: {node-role.kubernetes.io/master: ""}}}`, guard.NodeFacts{ControlPlane: true}},
		"zone":                                   {`{metadata: {labels: {topology.kubernetes.io/zone: z1}}}`, guard.NodeFacts{Zone: "z1"}},
		"addresses":                              {`{status: {addresses: [{type: Hostname, address: h}, {type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 192.0.2.1}]}}`, guard.NodeFacts{Addresses: []string{"10.0.0.1", "192.0.2.1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var node corev1.Node
			json, err := yamlToJSON([]byte(test.node))
			if err != nil {
				t.Fatal(err)
			}
			if err := decodeStrict(json, &node); err != nil {
				t.Fatal(err)
			}
			got := nodeFacts(trimNode(&node, interner{}))
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(guard.NodeFacts{}, "Labels", "Taints")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// service is a Service w/s and its slices, as one stream.
func service(spec string, slices ...string) string {
	text := "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: w}\nspec: " + spec + "\n"
	for _, s := range slices {
		text += "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" + s + "\n"
	}
	return text
}

func TestServicePolicy(t *testing.T) {
	for name, test := range map[string]struct {
		spec               string
		external, internal bool
		served             bool
	}{
		"load balancer, Local":         {`{type: LoadBalancer, externalTrafficPolicy: Local}`, true, false, true},
		"load balancer, Cluster":       {`{type: LoadBalancer, externalTrafficPolicy: Cluster}`, false, false, true},
		"node port, Local":             {`{type: NodePort, externalTrafficPolicy: Local}`, true, false, true},
		"cluster IP, Local":            {`{type: ClusterIP, externalTrafficPolicy: Local}`, false, false, true},
		"external IPs, Local":          {`{type: ClusterIP, externalIPs: [192.0.2.1], externalTrafficPolicy: Local}`, true, false, true},
		"external IPs, no type, Local": {`{externalIPs: [192.0.2.1], externalTrafficPolicy: Local}`, true, false, true},
		"internal Local":               {`{type: ClusterIP, internalTrafficPolicy: Local}`, false, true, true},
		"both":                         {`{type: NodePort, externalTrafficPolicy: Local, internalTrafficPolicy: Local}`, true, true, true},
		"headless":                     {`{clusterIP: None, internalTrafficPolicy: Local}`, false, false, false},
		"external name":                {`{type: ExternalName, externalName: a.b, externalTrafficPolicy: Local}`, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			ix := read(t, service(test.spec)).Index(unknown(), nil)
			f, ok := ix.Service(guard.Key{Namespace: "w", Name: "s"})
			if ok != test.served {
				t.Fatalf("served %v, want %v", ok, test.served)
			}
			if ok && (f.External != test.external || f.Internal != test.internal) {
				t.Errorf("external %v internal %v, want %v %v", f.External, f.Internal, test.external, test.internal)
			}
		})
	}
}

func TestSkipped(t *testing.T) {
	text := service(`{type: NodePort, externalTrafficPolicy: Local}`) + `---
kind: List
apiVersion: v1
items:
- {apiVersion: v1, kind: Service, metadata: {name: a, namespace: w}, spec: {clusterIP: None}}
- {apiVersion: v1, kind: Service, metadata: {name: b, namespace: w}, spec: {type: ExternalName, externalName: x.y}}
- {apiVersion: v1, kind: Service, metadata: {name: c, namespace: w, labels: {service.kubernetes.io/service-proxy-name: p}}, spec: {type: NodePort, externalTrafficPolicy: Local}}
- {apiVersion: v1, kind: Service, metadata: {name: d, namespace: w}, spec: {type: NodePort, externalTrafficPolicy: Cluster}}
- {apiVersion: v1, kind: Service, metadata: {name: e, namespace: w}, spec: {clusterIP: 10.96.0.1}}
`
	ix := read(t, text).Index(unknown(), nil)
	want := guard.Skipped{ClusterPolicy: 2, OtherProxy: 1, Headless: 1, ExternalName: 1}
	if diff := cmp.Diff(want, ix.Skipped()); diff != "" {
		t.Error(diff)
	}
	var keys []string
	for f := range ix.Services() {
		keys = append(keys, f.Key.String())
	}
	if diff := cmp.Diff([]string{"w/d", "w/e", "w/s"}, keys); diff != "" {
		t.Error(diff)
	}
}

// slice4 is an IPv4 slice of w/s with the rest of its body.
func slice4(name, rest string) string {
	return "metadata: {name: " + name + ", namespace: w, labels: {kubernetes.io/service-name: s}}\naddressType: IPv4\n" + rest
}

func TestPorts(t *testing.T) {
	a := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	plain := `{type: NodePort, clusterIP: 10.96.0.1, ports: [{name: http, port: 80, nodePort: 30080}]}`
	endpoint := guard.Endpoint{Addr: a("10.0.0.1"), Port: 8080, Node: "n1", Ready: true, Serving: true}
	one := `endpoints: [{addresses: [10.0.0.1], nodeName: n1}]`
	http := []guard.Port{{Name: "http", Protocol: "TCP", Family: "IPv4", NodePort: 30080, Endpoints: []guard.Endpoint{endpoint}}}
	none := []guard.Port{{Name: "http", Protocol: "TCP", Family: "IPv4", NodePort: 30080}}
	for name, test := range map[string]struct {
		spec   string
		slices []string
		want   []guard.Port
	}{
		"by name":                   {plain, []string{slice4("a", "ports: [{name: http, port: 8080}]\n"+one)}, http},
		"another name":              {plain, []string{slice4("a", "ports: [{name: web, port: 8080}]\n"+one)}, none},
		"no name in the slice":      {plain, []string{slice4("a", "ports: [{port: 8080}]\n"+one)}, none},
		"another protocol":          {plain, []string{slice4("a", "ports: [{name: http, protocol: UDP, port: 8080}]\n"+one)}, none},
		"no port number":            {plain, []string{slice4("a", "ports: [{name: http}]\n"+one)}, none},
		"port 0":                    {plain, []string{slice4("a", "ports: [{name: http, port: 0}]\n"+one)}, none},
		"no ports":                  {plain, []string{slice4("a", one)}, none},
		"no slices":                 {plain, nil, none},
		"another namespace's slice": {plain, []string{"metadata: {name: a, namespace: x, labels: {kubernetes.io/service-name: s}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\n" + one}, none},
		"a headless slice":          {plain, []string{"metadata: {name: a, namespace: w, labels: {kubernetes.io/service-name: s, service.kubernetes.io/headless: ''}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\n" + one}, none},
		"an IPv6 slice":             {plain, []string{"metadata: {name: a, namespace: w, labels: {kubernetes.io/service-name: s}}\naddressType: IPv6\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: ['fd00::1']}]"}, none},
		"an FQDN slice":             {plain, []string{"metadata: {name: a, namespace: w, labels: {kubernetes.io/service-name: s}}\naddressType: FQDN\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [a.example]}]"}, none},
		"only the first address":    {plain, []string{slice4("a", "ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.0.0.1, 10.0.0.2], nodeName: n1}]")}, http},
		"an endpoint without any":   {plain, []string{slice4("a", "ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [], nodeName: n2}, {addresses: [10.0.0.1], nodeName: n1}]")}, http},
		"leading zeros":             {plain, []string{slice4("a", "ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [010.0.0.1], nodeName: n1}]")}, http},
		"mirrored slices count":     {plain, []string{"metadata: {name: a, namespace: w, labels: {kubernetes.io/service-name: s, endpointslice.kubernetes.io/managed-by: endpointslicemirroring-controller.k8s.io}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\n" + one}, http},
		"copies in two slices stay": {plain, []string{slice4("a", "ports: [{name: http, port: 8080}]\n"+one), slice4("b", "ports: [{name: http, port: 8080}]\n"+one)}, []guard.Port{{Name: "http", Protocol: "TCP", Family: "IPv4", NodePort: 30080, Endpoints: []guard.Endpoint{endpoint, endpoint}}}},
		"an unnamed port":           {`{clusterIP: 10.96.0.1, ports: [{port: 8080}]}`, []string{slice4("a", "ports: [{name: '', port: 8080}]\n"+one)}, []guard.Port{{Protocol: "TCP", Family: "IPv4", Endpoints: []guard.Endpoint{endpoint}}}},
		"no node":                   {plain, []string{slice4("a", "ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}]")}, []guard.Port{{Name: "http", Protocol: "TCP", Family: "IPv4", NodePort: 30080, Endpoints: []guard.Endpoint{{Addr: a("10.0.0.1"), Port: 8080, Ready: true, Serving: true}}}}},
		"conditions": {
			plain,
			[]string{slice4("a", "ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.0.0.1], conditions: {ready: false, serving: true, terminating: true}}, {addresses: [10.0.0.2], conditions: {ready: false, serving: false, terminating: false}}]")},
			[]guard.Port{{Name: "http", Protocol: "TCP", Family: "IPv4", NodePort: 30080, Endpoints: []guard.Endpoint{{Addr: a("10.0.0.1"), Port: 8080, Serving: true, Terminating: true}, {Addr: a("10.0.0.2"), Port: 8080}}}},
		},
		"a pod behind it": {
			plain,
			[]string{slice4("a", "ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, namespace: w, name: p, uid: U1}}, {addresses: [10.0.0.2], targetRef: {kind: Node, name: n1}}]")},
			[]guard.Port{{Name: "http", Protocol: "TCP", Family: "IPv4", NodePort: 30080, Endpoints: []guard.Endpoint{
				{Addr: a("10.0.0.1"), Port: 8080, Pod: "U1", PodKey: guard.Key{Namespace: "w", Name: "p"}, Ready: true, Serving: true}, {Addr: a("10.0.0.2"), Port: 8080, Ready: true, Serving: true},
			}}},
		},
		"dual stack, each family by its own slices": {
			`{clusterIPs: [10.96.0.1, 'fd00::a'], ports: [{name: http, port: 8080, nodePort: 30080}]}`,
			[]string{slice4("a", "ports: [{name: http, port: 8080}]\n"+one), "metadata: {name: b, namespace: w, labels: {kubernetes.io/service-name: s}}\naddressType: IPv6\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: ['fd00::1'], nodeName: n2}]"},
			[]guard.Port{http[0], {Name: "http", Protocol: "TCP", Family: "IPv6", NodePort: 30080, Endpoints: []guard.Endpoint{{Addr: a("fd00::1"), Port: 8080, Node: "n2", Ready: true, Serving: true}}}},
		},
		"two ports, one without its target": {
			`{clusterIP: 10.96.0.1, ports: [{name: http, port: 8080}, {name: admin, port: 8081}, {name: http, protocol: UDP, port: 8080}]}`,
			[]string{slice4("a", "ports: [{name: http, port: 8080}, {name: http, protocol: UDP, port: 8080}]\n"+one), slice4("b", "ports: [{name: http, port: 8080}, {name: admin, port: 8081}]\nendpoints: [{addresses: [10.0.0.2], nodeName: n2}]")},
			[]guard.Port{
				{Name: "http", Protocol: "TCP", Family: "IPv4", Endpoints: []guard.Endpoint{endpoint, {Addr: a("10.0.0.2"), Port: 8080, Node: "n2", Ready: true, Serving: true}}},
				{Name: "admin", Protocol: "TCP", Family: "IPv4", Endpoints: []guard.Endpoint{{Addr: a("10.0.0.2"), Port: 8081, Node: "n2", Ready: true, Serving: true}}},
				{Name: "http", Protocol: "UDP", Family: "IPv4", Endpoints: []guard.Endpoint{endpoint}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix := read(t, service(test.spec, test.slices...)).Index(unknown(), nil)
			f, ok := ix.Service(guard.Key{Namespace: "w", Name: "s"})
			if !ok {
				t.Fatal("not served")
			}
			if diff := cmp.Diff(test.want, f.Ports, cmpAddr, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestExpand makes sure that hooks see in a slice what was in it.
func TestExpand(t *testing.T) {
	text := service(`{type: NodePort, ports: [{name: http, port: 80}]}`, slice4("a", `ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.0.0.1], nodeName: n1, conditions: {ready: true, terminating: false}, targetRef: {kind: Pod, namespace: w, name: p, uid: U1}}
- {addresses: [10.0.0.2], conditions: {serving: false}}`))
	ix := read(t, text).Index(unknown(), nil)
	got := ix.Objects().Slices("w", "s")
	if len(got) != 1 || len(got[0].Endpoints) != 2 {
		t.Fatalf("got %v", got)
	}
	first, second := got[0].Endpoints[0], got[0].Endpoints[1]
	yes, no, node := true, false, "n1"
	if diff := cmp.Diff([]any{&yes, (*bool)(nil), &no, &node}, []any{first.Conditions.Ready, first.Conditions.Serving, first.Conditions.Terminating, first.NodeName}); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]any{(*bool)(nil), &no, (*string)(nil)}, []any{second.Conditions.Ready, second.Conditions.Serving, second.NodeName}); diff != "" {
		t.Error(diff)
	}
	if first.TargetRef == nil || first.TargetRef.UID != "U1" || second.TargetRef != nil {
		t.Errorf("targets %v %v", first.TargetRef, second.TargetRef)
	}
	if !slices.Equal(first.Addresses, []string{"10.0.0.1"}) || *got[0].Ports[0].Port != 8080 {
		t.Errorf("got %v", got[0])
	}
}
