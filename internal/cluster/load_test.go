package cluster_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/cluster/clustertest"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const (
	pathNodes  = "/api/v1/nodes"
	pathPods   = "/api/v1/pods"
	pathSlices = "/apis/discovery.k8s.io/v1/endpointslices"
	pathPools  = "/apis/metallb.io/v1beta1/ipaddresspools"
)

// hooks are two that share a kind and their agents, and one whose kind is not served.
var hooks = []lbhooks.Description{
	{Name: "l2", Needs: []lbhooks.Need{
		{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools", Kind: "IPAddressPool", Verbs: []string{"list"}, Why: "pools"},
		{Version: "v1", Resource: "pods", Kind: "Pod", Labels: "app=s0", Verbs: []string{"list"}, Optional: true},
	}},
	{Name: "bgp", Needs: []lbhooks.Need{
		{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools", Kind: "IPAddressPool", Verbs: []string{"list"}, Why: "pools"},
		{Group: "frr.example", Version: "v1", Resource: "states", Kind: "State", Verbs: []string{"list"}, Optional: true},
		{Version: "v1", Resource: "pods", Kind: "Pod", Labels: "app=s0", Verbs: []string{"list"}, Optional: true},
	}},
	{Name: "absent", Needs: []lbhooks.Need{
		{Group: "absent.example", Version: "v1", Resource: "things", Kind: "Thing", Verbs: []string{"list"}},
		{Version: "v1", Resource: "pods", Kind: "Pod", Labels: "app=absent", Verbs: []string{"list"}},
	}},
}

type matcher struct{ hook string }

func (m matcher) Match(*corev1.Service, lbhooks.Objects) lbhooks.Rotation {
	return lbhooks.Rotation{Hook: m.hook, Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true}}
}

func (matcher) Descriptions() []lbhooks.Description { return hooks }

// serve starts a server with a generated cluster and one pool.
func serve(t *testing.T, nodes, services int) (*clustertest.Server, *cluster.Clients) {
	t.Helper()
	srv := clustertest.NewServer()
	t.Cleanup(srv.Close)
	c := clustertest.Large(nodes, services, 3)
	c.AddBudgets(services)
	if err := srv.ServeCluster(c); err != nil {
		t.Fatal(err)
	}
	pool := map[string]any{"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "metadata": map[string]any{"namespace": "m", "name": "p"}}
	gvk := metav1.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "IPAddressPool"}
	if err := srv.ServeKind(gvk, "ipaddresspools", pool); err != nil {
		t.Fatal(err)
	}
	clients, err := cluster.NewClients(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return srv, clients
}

// TestLoadRequests holds the number of first pages fixed whatever the size, and pages the only thing that grows.
func TestLoadRequests(t *testing.T) {
	first := []string{
		"GET /api/v1/nodes", "GET /api/v1/pods", "GET /api/v1/pods", "GET /api/v1/services", "GET /apis",
		"GET /apis/apps/v1/daemonsets", "GET /apis/discovery.k8s.io/v1/endpointslices",
		"GET /apis/metallb.io/v1beta1/ipaddresspools", "GET /apis/policy/v1/poddisruptionbudgets",
	}
	for name, test := range map[string]struct{ nodes, services, pages int }{
		"10 Services":    {10, 10, 0},
		"2,000 Services": {1200, 2000, 2 + 3*3},
	} {
		t.Run(name, func(t *testing.T) {
			srv, clients := serve(t, test.nodes, test.services)
			s, err := cluster.Load(t.Context(), clients, hooks, cluster.Scope{Nodes: []string{"n0", "n0"}})
			if err != nil {
				t.Fatal(err)
			}
			all := srv.Requests()
			got := slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r[len(r)-1] == '+' })
			if diff := cmp.Diff(first, got); diff != "" {
				t.Error(diff)
			}
			if n := len(all) - len(got); n != test.pages {
				t.Errorf("%d further pages, want %d", n, test.pages)
			}
			read, _ := s.Counts(hooks)
			for _, want := range []cluster.Count{{Kind: "Service", N: test.services}, {Kind: "Node", N: test.nodes}, {Kind: "EndpointSlice", N: test.services}, {Kind: "PodDisruptionBudget", N: test.services}} {
				if !slices.Contains(read, want) {
					t.Errorf("read %v, want %v", read, want)
				}
			}
			if _, err := cluster.Load(t.Context(), clients, hooks, cluster.Scope{Nodes: []string{"n0"}}); err != nil {
				t.Fatal(err)
			}
			again := srv.Requests()
			if len(again) != len(all)-2 || slices.Contains(again, "GET /apis") || slices.Contains(again, "GET /apis/apps/v1/daemonsets") {
				t.Errorf("%d requests the second time, want all but discovery and DaemonSets", len(again))
			}
		})
	}
}

func TestLoadScope(t *testing.T) {
	_, clients := serve(t, 10, 100)
	count := func(scope cluster.Scope) (on map[string]int) {
		s, err := cluster.Load(t.Context(), clients, hooks, scope)
		if err != nil {
			t.Fatal(err)
		}
		ix := s.Index(matcher{}, scope.Nodes)
		on = map[string]int{}
		for _, n := range s.NodeNames() {
			if c := len(slices.Collect(ix.Pods(n))); c > 0 {
				on[n] = c
			}
		}
		if agents := ix.Objects().Agents("l2"); len(agents) != 1 || agents[0].Name != "s0-0" {
			t.Errorf("agents %v", agents)
		}
		if custom := ix.Objects().Custom(schema.GroupKind{Group: "metallb.io", Kind: "IPAddressPool"}); len(custom) != 1 {
			t.Errorf("pools %v", custom)
		}
		return on
	}
	all := count(cluster.Scope{AllPods: true})
	if len(all) != 3 || all["n1"] == 0 {
		t.Fatalf("pods by node %v", all)
	}
	if diff := cmp.Diff(map[string]int{"n1": all["n1"], "n2": all["n2"]}, count(cluster.Scope{Nodes: []string{"n1", "n2"}})); diff != "" {
		t.Error(diff)
	}
	if got := count(cluster.Scope{}); len(got) != 0 {
		t.Errorf("pods that nobody asked for: %v", got)
	}
}

func TestLoadForbidden(t *testing.T) {
	srv, clients := serve(t, 10, 10)
	srv.Forbid(pathNodes, "alice")
	srv.Forbid(pathSlices, "alice")
	srv.Forbid("/apis/apps/v1/daemonsets", "alice")
	srv.Forbid(pathPools, "alice")
	_, err := cluster.Load(t.Context(), clients, hooks, cluster.Scope{Nodes: []string{"n0"}})
	var forbidden *cluster.Forbidden
	if !errors.As(err, &forbidden) {
		t.Fatalf("got %v", err)
	}
	want := &cluster.Forbidden{User: "alice", Missing: []cluster.Verb{
		{Verb: "list", Resource: "nodes", Needed: true},
		{Verb: "list", Group: "discovery.k8s.io", Resource: "endpointslices", Needed: true},
		{Verb: "list", Group: "apps", Resource: "daemonsets"},
		{Verb: "list", Group: "metallb.io", Resource: "ipaddresspools"},
	}}
	if diff := cmp.Diff(want, forbidden, cmpopts.IgnoreFields(cluster.Verb{}, "Why"), cmpopts.IgnoreUnexported(cluster.Verb{})); diff != "" {
		t.Error(diff)
	}
}

func TestLoadOptional(t *testing.T) {
	srv, clients := serve(t, 10, 10)
	srv.Forbid("/apis/apps/v1/daemonsets", "alice")
	srv.Forbid(pathPools, "alice")
	s, err := cluster.Load(t.Context(), clients, hooks, cluster.Scope{Nodes: []string{"n0"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Missing()) != 2 {
		t.Errorf("missing %v", s.Missing())
	}
	if !s.Index(matcher{}, nil).DaemonSetExists(guard.Key{Namespace: "a", Name: "b"}) {
		t.Error("a DaemonSet that may not be read is taken for gone")
	}
	for hook, want := range map[string]string{
		"l2":     "not allowed to list ipaddresspools.metallb.io",
		"absent": "this cluster has no kind Thing.absent.example: its CRD is not installed",
		"":       "",
	} {
		for f := range s.Index(matcher{hook}, nil).Services() {
			if f.Rotation.Broken != want {
				t.Errorf("hook %q broken %q, want %q", hook, f.Rotation.Broken, want)
			}
		}
	}
}

// TestLoadPlainDiscovery reads a server that answers discovery group by group, and an in-memory clientset.
func TestLoadPlainDiscovery(t *testing.T) {
	pools := schema.GroupKind{Group: "metallb.io", Kind: "IPAddressPool"}
	srv, clients := serve(t, 10, 10)
	srv.Plain()
	inMemory := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}})
	inMemory.Resources = []*metav1.APIResourceList{{GroupVersion: "metallb.io/v1beta1", APIResources: []metav1.APIResource{{Name: "ipaddresspools", Kind: "IPAddressPool"}}}}
	pool := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "metadata": map[string]any{"namespace": "m", "name": "p"}}}
	lists := map[schema.GroupVersionResource]string{{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}: "IPAddressPoolList"}
	for name, c := range map[string]*cluster.Clients{
		"over HTTP": clients,
		"in memory": {Kubernetes: inMemory, Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, pool)},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := cluster.Load(t.Context(), c, hooks, cluster.Scope{Nodes: []string{"n0"}})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Index(matcher{}, nil).Objects().Custom(pools); len(got) != 1 || got[0].GetName() != "p" {
				t.Errorf("pools %v", got)
			}
			if s.Unavailable(pools) != "" || s.Unavailable(schema.GroupKind{Group: "absent.example", Kind: "Thing"}) == "" {
				t.Error("what is served is not known")
			}
		})
	}
}

func TestLoadDiscoveryForbidden(t *testing.T) {
	srv, clients := serve(t, 10, 10)
	srv.Forbid("/apis", "alice")
	_, err := cluster.Load(t.Context(), clients, hooks, cluster.Scope{})
	var forbidden *cluster.Forbidden
	if !errors.As(err, &forbidden) || err.Error() != `user "alice" may not get /apis` {
		t.Errorf("got %v", err)
	}
}

func TestLoadNotFound(t *testing.T) {
	_, clients := serve(t, 10, 10)
	_, err := cluster.Load(t.Context(), clients, hooks, cluster.Scope{Nodes: []string{"n0", "n99"}})
	var missing *cluster.NotFound
	if !errors.As(err, &missing) || !slices.Equal(missing.Names, []string{"n99"}) {
		t.Errorf("got %v", err)
	}
}

func TestLoadExpired(t *testing.T) {
	srv, clients := serve(t, 1200, 10)
	srv.Expire(pathNodes, 1)
	s, err := cluster.Load(t.Context(), clients, nil, cluster.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.NodeNames()); n != 1200 {
		t.Errorf("%d nodes after a restart, want 1200", n)
	}
	srv.Expire(pathNodes, 2)
	if _, err := cluster.Load(t.Context(), clients, nil, cluster.Scope{}); err == nil {
		t.Error("a list that expires again and again is no error")
	}
}

func TestLoadCancelled(t *testing.T) {
	_, clients := serve(t, 10, 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cluster.Load(ctx, clients, hooks, cluster.Scope{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestLoadWorkloads also makes sure that trimming drops what runs and keeps where.
func TestLoadWorkloads(t *testing.T) {
	srv, clients := serve(t, 10, 10)
	deployment := map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "a", "name": "d"},
		"spec": map[string]any{"replicas": 3, "template": map[string]any{"spec": map[string]any{
			"nodeSelector": map[string]any{"disk": "ssd"},
			"containers":   []any{map[string]any{"name": "c", "image": "i", "env": []any{map[string]any{"name": "A", "value": "b"}}}},
		}}},
	}
	if err := srv.Serve("/apis/apps/v1/deployments", deployment); err != nil {
		t.Fatal(err)
	}
	for _, workloads := range []bool{false, true} {
		s, err := cluster.Load(t.Context(), clients, nil, cluster.Scope{Workloads: workloads})
		if err != nil {
			t.Fatal(err)
		}
		got := slices.Collect(s.Index(matcher{}, nil).Workloads("a"))
		if (len(got) == 1) != workloads {
			t.Fatalf("workloads %v: %v", workloads, got)
		}
		if workloads && (got[0].Replicas != 3 || got[0].Spec.NodeSelector["disk"] != "ssd" || got[0].Spec.Containers[0].Env != nil) {
			t.Errorf("got %+v", got[0])
		}
	}
}
