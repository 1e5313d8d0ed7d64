package cluster_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// TestLoadRemembers: what an earlier load saw of DaemonSets holds, until a pod names one that was not there.
func TestLoadRemembers(t *testing.T) {
	const path = "/apis/apps/v1/daemonsets"
	srv, clients := serve(t, 3, 3)
	yes := true
	add := func(name string) {
		t.Helper()
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name + "-x", UID: "pod-uid", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "DaemonSet", Name: name, Controller: &yes},
		}}}
		pod.Spec.NodeName = "n0"
		if err := srv.Serve(path, ds); err != nil {
			t.Fatal(err)
		}
		if err := srv.Serve("/api/v1/pods", pod); err != nil {
			t.Fatal(err)
		}
	}
	load := func(listed bool, scope cluster.Scope, exist ...string) {
		t.Helper()
		s, err := cluster.Load(t.Context(), clients, hooks, scope)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(srv.Requests(), "GET "+path); got != listed {
			t.Errorf("DaemonSets listed: %t, want %t", got, listed)
		}
		for _, name := range []string{"first", "second"} {
			if got := s.Index(matcher{}, nil).DaemonSetExists(guard.Key{Namespace: "ns1", Name: name}); got != slices.Contains(exist, name) {
				t.Errorf("DaemonSet %s exists: %t", name, got)
			}
		}
	}
	n0 := cluster.Scope{Nodes: []string{"n0"}}
	add("first")
	load(true, n0, "first")
	load(false, n0, "first")
	add("second")
	load(true, n0, "first", "second")
	load(false, n0, "first", "second")
	load(true, cluster.Scope{Workloads: true}, "first", "second")
}
