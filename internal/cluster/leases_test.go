package cluster_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const pathLeases = "/apis/coordination.k8s.io/v1/leases"

// elected is a hook that reads Leases and is found by its agents alone, as kube-vip is.
func elected(agents string) []lbhooks.Description {
	return []lbhooks.Description{{Name: "elected", Needs: []lbhooks.Need{
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Kind: "Lease", Verbs: []string{"list", "get"}},
		{Version: "v1", Resource: "pods", Kind: "Pod", Labels: agents, Verbs: []string{"list"}},
	}}}
}

// Leases are listed where the hook's agents run, and those of nodes are not asked for.
func TestLoadLeases(t *testing.T) {
	lease := map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"namespace": "e", "name": "kubevip-a"}}
	kind := schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}
	for name, test := range map[string]struct {
		agents string
		listed bool
	}{
		"its agents run": {"app=s0", true},
		"they do not":    {"app=absent", false},
	} {
		t.Run(name, func(t *testing.T) {
			srv, clients := serve(t, 3, 3)
			if err := srv.ServeKind(metav1.GroupVersionKind{Group: kind.Group, Version: "v1", Kind: kind.Kind}, "leases", lease); err != nil {
				t.Fatal(err)
			}
			snap, err := cluster.Load(t.Context(), clients, elected(test.agents), cluster.Scope{})
			if err != nil {
				t.Fatal(err)
			}
			asked := slices.ContainsFunc(srv.Requests(), func(r string) bool { return strings.Contains(r, pathLeases) })
			if objects := snap.Index(matcher{}, nil).Objects().Custom(kind); asked != test.listed || (len(objects) == 1) != test.listed {
				t.Errorf("asked %t, %d objects; want %t\n%s", asked, len(objects), test.listed, strings.Join(srv.Requests(), "\n"))
			}
		})
	}
}

// A DaemonSet is at hand with the rules of its placement, from files and after a second load that does not list it.
func TestDaemonSetAtHand(t *testing.T) {
	d := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "agents"}}
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	snap, err := cluster.FromObjects(d)
	if err != nil {
		t.Fatal(err)
	}
	srv, clients := serve(t, 3, 3)
	if err := srv.Serve("/apis/apps/v1/daemonsets", d); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if i > 0 {
			if snap, err = cluster.Load(t.Context(), clients, nil, cluster.Scope{}); err != nil {
				t.Fatal(err)
			}
		}
		objects := snap.Index(matcher{}, nil).Objects()
		if found, ok := objects.DaemonSet("m", "agents"); !ok || found.Spec.Template.Spec.Affinity == nil {
			t.Errorf("look %d: %v, %t", i, found, ok)
		}
		if _, ok := objects.DaemonSet("m", "others"); ok {
			t.Errorf("look %d: a DaemonSet that is not there", i)
		}
	}
}
