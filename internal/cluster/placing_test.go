package cluster_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/cluster/clustertest"
	"github.com/safedrain/safedrain/pkg/guard"
)

// podLists are the LISTs of pods that a load made, with what they selected.
type podLists struct {
	mu   sync.Mutex
	seen []string
}

func (p *podLists) with(part string) int {
	return len(slices.DeleteFunc(slices.Clone(p.seen), func(q string) bool { return !strings.Contains(q, part) }))
}

// everything counts the LISTs of all pods.
func (p *podLists) everything() int {
	return len(slices.DeleteFunc(slices.Clone(p.seen), func(q string) bool { return strings.Contains(q, "elector=") || strings.Contains(q, "namespaces/") }))
}

// placed serves a generated cluster whose nodes have room and whose pods are all there, loads what the scope says, and plans
// the drain of n0.
func placed(t *testing.T, scope cluster.Scope, nodes int, change func(*clustertest.Cluster)) (*podLists, *cluster.Snapshot, guard.DrainPlan) {
	t.Helper()
	c := clustertest.Large(nodes, 60, nodes)
	for _, n := range c.Nodes {
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
	}
	change(c)
	srv := clustertest.NewServer()
	t.Cleanup(srv.Close)
	if err := srv.ServeCluster(c); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Pods {
		if err := srv.Serve(fmt.Sprintf("/api/v1/namespaces/%s/pods", p.Namespace), p); err != nil {
			t.Fatal(err)
		}
	}
	lists := &podLists{}
	target, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods") && r.URL.Query().Get("continue") == "" {
			query, _ := url.QueryUnescape(r.URL.RawQuery)
			lists.mu.Lock()
			lists.seen = append(lists.seen, r.URL.Path+"?"+query)
			lists.mu.Unlock()
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	clients, err := cluster.NewClients(&rest.Config{Host: proxy.URL})
	if err != nil {
		t.Fatal(err)
	}
	clients.Dynamic = nil // no hooks
	s, err := cluster.Load(t.Context(), clients, nil, scope)
	if err != nil {
		t.Fatal(err)
	}
	req := guard.Request{Nodes: []string{"n0"}, Flags: guard.Flags{GracePeriod: -1}, Cluster: s.Placement()}
	return lists, s, guard.Plan(s.Index(matcher{}, []string{"n0"}), req)
}

// TestPlacementReads: only as many nodes as the pods in question need are looked into; what a constraint is about is
// selected; and every pod is listed only where nothing else answers, which is said.
func TestPlacementReads(t *testing.T) {
	const nodes = 300
	ofLocal := func(c *clustertest.Cluster, change func(*corev1.Pod)) {
		for _, p := range c.Pods {
			if p.Spec.NodeName == "n0" {
				change(p)
			}
		}
	}
	anti := func(selector *metav1.LabelSelector, spaces *metav1.LabelSelector) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: selector, NamespaceSelector: spaces,
			}}}}
		}
	}
	ask := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
		}
	}
	for name, c := range map[string]struct {
		change        func(*clustertest.Cluster)
		perNode       int // at most
		selected      bool
		everything    int
		unschedulable bool
	}{
		"room on the first nodes": {change: func(*clustertest.Cluster) {}, perNode: 64},
		"a constraint about pods of one app": {
			change: func(c *clustertest.Cluster) {
				ofLocal(c, anti(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "s0"}}, nil))
			},
			perNode: 64, selected: true,
		},
		"a constraint about all pods": {
			change: func(c *clustertest.Cluster) {
				ofLocal(c, anti(&metav1.LabelSelector{}, &metav1.LabelSelector{}))
			}, perNode: 1, everything: 1, unschedulable: true,
		},
		"no node has room, and the nodes tell so": {
			change: func(c *clustertest.Cluster) { ofLocal(c, ask("65")) }, perNode: 1, unschedulable: true,
		},
		"no node has room, and only their pods tell so": {
			change: func(c *clustertest.Cluster) {
				for _, p := range c.Pods {
					ask("10")(p)
				}
				ofLocal(c, ask("60"))
			}, perNode: 256, everything: 1, unschedulable: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			lists, s, plan := placed(t, cluster.Scope{Nodes: []string{"n0"}, Placement: true}, nodes, c.change)
			if n := lists.with("fieldSelector="); n > c.perNode || n == 0 {
				t.Errorf("%d nodes were looked into, want 1 to %d", n, c.perNode)
			}
			if got := lists.with("labelSelector=app=s0") > 0; got != c.selected {
				t.Errorf("pods selected: %t, want %t: %q", got, c.selected, lists.seen)
			}
			if n := lists.everything(); n != c.everything || (s.PlacementNote() != "") != (n > 0) {
				t.Errorf("every pod listed %d times, want %d; note %q", n, c.everything, s.PlacementNote())
			}
			judged := 0
			for i := range plan.Services {
				svc := &plan.Services[i]
				if svc.Replacements == nil {
					continue
				}
				judged++
				found := slices.ContainsFunc(svc.Findings, func(f guard.Finding) bool { return f.Code == guard.ReplacementUnschedulable })
				if found != c.unschedulable {
					t.Errorf("%s: unschedulable %t, want %t: %+v", svc.Key(), found, c.unschedulable, svc.Replacements)
				}
			}
			if judged == 0 {
				t.Error("no Service's replacements were judged")
			}
		})
	}
}

// TestPlacementOfEveryNode: where every pod is listed anyway, nothing more is read of pods, and every node counts.
func TestPlacementOfEveryNode(t *testing.T) {
	lists, s, plan := placed(t, cluster.Scope{AllPods: true, Placement: true}, 40, func(*clustertest.Cluster) {})
	if len(lists.seen) != 1 || s.PlacementNote() != "" {
		t.Errorf("LISTs of pods %q, note %q; want one and none", lists.seen, s.PlacementNote())
	}
	judged := slices.DeleteFunc(plan.Services, func(p guard.ServicePlan) bool { return p.Replacements == nil })
	if len(judged) == 0 {
		t.Fatal("no Service's replacements were judged")
	}
	for i := range judged {
		for _, r := range judged[i].Replacements.Pods {
			if r.Fits != 39 || r.Unread != 0 || r.May == "" {
				t.Errorf("%s: %+v, want room on each of 39 nodes", judged[i].Key(), r)
			}
		}
	}
}
