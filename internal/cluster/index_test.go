package cluster

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const world = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n2}}
- {apiVersion: v1, kind: Node, metadata: {name: n1}}
- {apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {taints: [{key: karpenter.sh/disrupted, effect: NoSchedule}]}}
- {apiVersion: v1, kind: Service, metadata: {name: b, namespace: w}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}
- {apiVersion: v1, kind: Service, metadata: {name: a, namespace: w}, spec: {type: LoadBalancer, clusterIP: 10.0.0.2, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: 192.0.2.2}]}}}
- {apiVersion: v1, kind: Service, metadata: {name: c, namespace: v}, spec: {type: LoadBalancer, clusterIP: 10.0.0.3, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.2}, {hostname: h}]}}}
- {apiVersion: v1, kind: Service, metadata: {name: d, namespace: v}, spec: {clusterIP: 10.0.0.4, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [{hostname: h}]}}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: b1, namespace: w, labels: {kubernetes.io/service-name: b}}, addressType: IPv4, ports: [{name: "", port: 1}], endpoints: [{addresses: [10.1.0.1], nodeName: n1}, {addresses: [10.1.0.2], nodeName: n1}]}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a1, namespace: w, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, ports: [{name: "", port: 1}], endpoints: [{addresses: [10.1.0.3], nodeName: n2}, {addresses: [10.1.0.4], nodeName: n1}]}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: c1, namespace: v, labels: {kubernetes.io/service-name: c}}, addressType: IPv4, ports: [{name: "", port: 1}], endpoints: [{addresses: [10.1.0.5]}]}
- {apiVersion: v1, kind: Pod, metadata: {name: q, namespace: w, uid: U2, labels: {app: speaker}}, spec: {nodeName: n1}}
- {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: w, uid: U1, labels: {app: speaker}}, spec: {nodeName: n1}}
- {apiVersion: v1, kind: Pod, metadata: {name: r, namespace: w, uid: U3, labels: {app: other}}, spec: {nodeName: n2}}
- {apiVersion: v1, kind: Pod, metadata: {name: pending, namespace: w, uid: U4, labels: {app: speaker}}}
- {apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b2, namespace: w}}
- {apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b1, namespace: w}}
- {apiVersion: apps/v1, kind: DaemonSet, metadata: {name: ds, namespace: w}, status: {currentNumberScheduled: 3}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: w}}
- {apiVersion: apps/v1, kind: StatefulSet, metadata: {name: s, namespace: w}, spec: {replicas: 0}}
- {apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: p2, namespace: m}}
- {apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: p1, namespace: m}}
- {apiVersion: v1, kind: Secret, metadata: {name: s, namespace: w}, data: {x: eA==}}
- {apiVersion: v1, kind: Endpoints, metadata: {name: a, namespace: w}}
`

func names[T any](seq func(func(T) bool), name func(T) string) []string {
	var out []string
	for v := range seq {
		out = append(out, name(v))
	}
	return out
}

func TestIndex(t *testing.T) {
	s := read(t, world)
	ix := s.Index(unknown(), []string{"n2"})
	ofService := func(f *guard.ServiceFacts) string { return f.Key.String() }
	shared := func(ns, name string) []string {
		f, _ := ix.Service(guard.Key{Namespace: ns, Name: name})
		var out []string
		for _, k := range f.SharedWith {
			out = append(out, k.String())
		}
		return out
	}
	leaving := func(node string) bool { return ix.Objects().Leaving(node) }
	for name, test := range map[string]struct{ got, want any }{
		"node names":           {s.NodeNames(), []string{"n1", "n2", "n3"}},
		"nodes":                {names(ix.Nodes(), func(n *guard.NodeFacts) string { return n.Name }), []string{"n1", "n2", "n3"}},
		"services":             {names(ix.Services(), ofService), []string{"v/c", "v/d", "w/a", "w/b"}},
		"services on n1":       {names(ix.ServicesOn("n1"), ofService), []string{"w/a", "w/b"}},
		"services on n2":       {names(ix.ServicesOn("n2"), ofService), []string{"w/a"}},
		"services on n3":       {names(ix.ServicesOn("n3"), ofService), []string(nil)},
		"services without":     {names(ix.ServicesOn(""), ofService), []string{"v/c"}},
		"pods on n1":           {names(ix.Pods("n1"), func(p *corev1.Pod) string { return p.Name }), []string{"p", "q"}},
		"budgets":              {len(slices.Collect(ix.Budgets("w"))), 2},
		"budgets elsewhere":    {len(slices.Collect(ix.Budgets("v"))), 0},
		"daemon set":           {ix.DaemonSetExists(guard.Key{Namespace: "w", Name: "ds"}), true},
		"no daemon set":        {ix.DaemonSetExists(guard.Key{Namespace: "w", Name: "gone"}), false},
		"workloads":            {names(ix.Workloads("w"), func(w *guard.Workload) string { return w.Kind + " " + w.Key.Name }), []string{"Deployment d", "DaemonSet ds", "StatefulSet s"}},
		"replicas":             {names(ix.Workloads("w"), func(w *guard.Workload) string { return string('0' + w.Replicas) }), []string{"1", "3", "0"}},
		"shared by a":          {shared("w", "a"), []string{"v/c", "w/b"}},
		"shared by b":          {shared("w", "b"), []string{"w/a"}},
		"shared by host alone": {shared("v", "d"), []string(nil)},
		"named is leaving":     {leaving("n2"), true},
		"tainted is leaving":   {leaving("n3"), true},
		"another stays":        {leaving("n1"), false},
		"unknown stays":        {leaving("n9"), false},
	} {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if _, ok := ix.Pod("U4"); !ok {
		t.Error("a pod that was read is not at hand")
	}
	if _, ok := ix.Pod("U9"); ok {
		t.Error("a pod that was not read is at hand")
	}
}

// TestDoubt: without a kind that the hook cannot do without, a node that could be in rotation may be in it; what the hook
// knows of others stays, and so does everything of a hook that can work.
func TestDoubt(t *testing.T) {
	in := func(in guard.InRotation, eligible bool) lbhooks.Seat {
		return lbhooks.Seat{In: in, Eligible: eligible, Why: "w"}
	}
	all := map[string]struct{ seat, doubted lbhooks.Seat }{
		"in":          {in(lbhooks.Yes, true), in(lbhooks.Yes, true)},
		"in and last": {in(lbhooks.Yes, false), in(lbhooks.Yes, false)},
		"unknown":     {in(lbhooks.Unknown, true), in(lbhooks.Unknown, true)},
		"could be":    {in(lbhooks.No, true), in(lbhooks.Unknown, true)},
		"never":       {in(lbhooks.No, false), in(lbhooks.No, false)},
	}
	for _, unserved := range []bool{false, true} {
		for name, test := range all {
			want := test.seat
			if unserved {
				want = test.doubted
			}
			s := read(t, world)
			s.unserved = map[schema.GroupKind]bool{{Group: "metallb.io", Kind: "IPAddressPool"}: unserved}
			shared := map[string]lbhooks.Seat{"shared": test.seat, "both": in(lbhooks.Yes, false)}
			m := &fakeMatcher{
				hooks: []lbhooks.Description{{Name: "metallb-l2", Needs: []lbhooks.Need{
					{Group: "metallb.io", Kind: "IPAddressPool"}, {Group: "metallb.io", Kind: "Gone", Optional: true},
				}}},
				rotation: lbhooks.Rotation{
					Hook: "metallb-l2", Rest: test.seat, Shared: shared,
					Seats: map[string]lbhooks.Seat{"own": test.seat, "both": test.seat},
				},
			}
			f, _ := s.Index(m, nil).Service(guard.Key{Namespace: "w", Name: "a"})
			for _, node := range []string{"own", "shared", "both", "rest"} {
				if got := f.Rotation.Seat(node); got != want {
					t.Errorf("%s, unserved %t, %s: %+v, want %+v", name, unserved, node, got, want)
				}
			}
			if broken := f.Rotation.Broken != ""; broken != unserved {
				t.Errorf("broken %q, unserved %t", f.Rotation.Broken, unserved)
			}
			if shared["shared"] != test.seat {
				t.Errorf("%s: the map that Services share was written to", name)
			}
		}
	}
}

func TestDaemonSetsUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want bool
	}{
		"none in the files": {"{apiVersion: v1, kind: Node, metadata: {name: n1}}", true},
		"an empty list":     {"{apiVersion: apps/v1, kind: DaemonSetList, items: []}", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := read(t, test.text).Index(unknown(), nil).DaemonSetExists(guard.Key{Name: "x"}); got != test.want {
				t.Errorf("exists %v, want %v", got, test.want)
			}
		})
	}
}

func TestObjectsForHooks(t *testing.T) {
	m := unknown()
	pools := schema.GroupKind{Group: "metallb.io", Kind: "IPAddressPool"}
	m.hooks = []lbhooks.Description{{Name: "metallb-l2", Needs: []lbhooks.Need{
		{Group: pools.Group, Version: "v1beta1", Resource: "ipaddresspools", Kind: pools.Kind},
		{Version: "v1", Resource: "pods", Kind: "Pod", Labels: "app=speaker"},
	}}}
	s := read(t, world)
	ix := s.Index(m, nil)
	var custom, agents []string
	for _, u := range ix.Objects().Custom(pools) {
		custom = append(custom, u.GetName())
	}
	for _, p := range ix.Objects().Agents("metallb-l2") {
		agents = append(agents, p.Name)
	}
	if diff := cmp.Diff([]string{"p1", "p2"}, custom); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"p", "q"}, agents); diff != "" {
		t.Errorf("agents are bound pods: %s", diff)
	}
	if got := ix.Objects().Agents("another"); len(got) != 0 {
		t.Errorf("agents of another hook: %v", got)
	}
	readKinds, other := s.Counts(m.hooks)
	if diff := cmp.Diff([]Count{{"Endpoints", 1}, {"Secret", 1}}, other); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(readKinds, Count{"IPAddressPool.metallb.io", 2}) || !slices.Contains(readKinds, Count{"EndpointSlice", 3}) {
		t.Errorf("read %v", readKinds)
	}
	if _, other := s.Counts(nil); !slices.Contains(other, Count{"IPAddressPool.metallb.io", 2}) {
		t.Errorf("without a hook that needs it, other %v", other)
	}
}

// TestRotationIsAskedOnce also makes sure that nobody is asked about a Service that outsiders cannot reach.
func TestRotationIsAskedOnce(t *testing.T) {
	m := unknown()
	ix := read(t, world).Index(m, nil)
	for range 3 {
		for range ix.Services() {
		}
	}
	slices.Sort(m.asked)
	if diff := cmp.Diff([]string{"v/c", "w/a", "w/b"}, m.asked); diff != "" {
		t.Error(diff)
	}
	f, _ := ix.Service(guard.Key{Namespace: "v", Name: "d"})
	if f.Rotation.Rest.In != guard.No {
		t.Errorf("rotation of an internal Service: %+v", f.Rotation.Rest)
	}
}

func TestLargeRotationsAreNotKept(t *testing.T) {
	m := unknown()
	m.rotation.Seats = map[string]guard.Seat{}
	for i := range maxCachedSeats/2 + 1 {
		m.rotation.Seats[string(rune(i))] = guard.Seat{}
	}
	ix := read(t, world).Index(m, nil)
	for range 2 {
		for range ix.Services() {
		}
	}
	if len(m.asked) != 1+2+2 {
		t.Errorf("asked %d times, want the first Service once and the two that do not fit twice", len(m.asked))
	}
}

func TestResolve(t *testing.T) {
	s := read(t, `
apiVersion: v1
kind: NodeList
items:
- {metadata: {name: ip-10-0-1-5.eu-west-1.compute.internal, labels: {kubernetes.io/hostname: host-a}}, status: {addresses: [{type: InternalIP, address: 10.0.1.5}]}}
- {metadata: {name: worker-1}}
- {metadata: {name: worker-2}}
`)
	if err := s.Resolve([]string{"worker-1"}); err != nil {
		t.Error(err)
	}
	var got *NotFound
	err := s.Resolve([]string{"x", "worker-3", "ip-10-0-1-5", "host-a", "10.0.1.5", "worker-3", "worker-1"})
	if !errors.As(err, &got) {
		t.Fatalf("got %v", err)
	}
	want := &NotFound{
		Names: []string{"10.0.1.5", "host-a", "ip-10-0-1-5", "worker-3", "x"},
		Suggestions: map[string][]string{
			"10.0.1.5": {"ip-10-0-1-5.eu-west-1.compute.internal"}, "host-a": {"ip-10-0-1-5.eu-west-1.compute.internal"},
			"ip-10-0-1-5": {"ip-10-0-1-5.eu-west-1.compute.internal"}, "worker-3": {"worker-1", "worker-2"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
