package e2e

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// TestC66BetweenPods: with --wait-replacements the next pod of a Service goes when the replacement of the one before is
// Ready elsewhere.
func TestC66BetweenPods(t *testing.T) {
	s := newScene(t, 1)
	s.Deployment("p", 2, controlplane.Template(map[string]string{controlplane.ReadyAfter: "3"}))
	s.nodes = append(s.nodes, s.Nodes(1)...) // now that both pods are on n1
	n1, n2 := s.nodes[0], s.nodes[1]
	s.pod("p", "p-elsewhere", n2)
	s.Service("p")
	s.EndpointsReady("p", 3)
	s.remember()
	old := s.podsOn("p", n1)
	if len(old) != 2 {
		t.Fatalf("pods on %s: %v, want 2", n1, old)
	}
	s.run(n1, "--force", "--accept-unproven=all", "--wait-replacements", "--timeout=100s").want(s, 0)
	now := s.podsOn("p", n2)
	replacements := slices.DeleteFunc(now, func(name string) bool { return name == "p-elsewhere" })
	if len(replacements) != 2 {
		t.Fatalf("replacements on %s: %v, want 2", n2, replacements)
	}
	// One replacement was Ready before the later of the two went.
	later := max(s.journal.get("evicted "+old[0]).rv, s.journal.get("evicted "+old[1]).rv)
	if first := min(s.journal.get("ready "+replacements[0]).rv, s.journal.get("ready "+replacements[1]).rv); first > later {
		t.Errorf("the second pod was evicted at %d, before the first replacement was Ready at %d", later, first)
	}
	s.back(n1)
}

// podsOn names the pods of an app on a node, sorted.
func (s *scene) podsOn(app, node string) []string {
	s.Helper()
	list, err := s.Client.CoreV1().Pods(s.Namespace).List(s.Context(), metav1.ListOptions{
		LabelSelector: controlplane.AppLabel + "=" + app, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		s.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			out = append(out, list.Items[i].Name)
		}
	}
	slices.Sort(out)
	return out
}

// nodeAfterNode is a Service with a pod on each of n1, n2 and n3, of a Deployment that puts one on each node; its
// replacements find a place only on n4, if there is one.
func nodeAfterNode(t *testing.T, nodes int) *scene {
	t.Helper()
	s := newScene(t, 3)
	s.Deployment("p", 3, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{controlplane.AppLabel: "p"}},
			}},
		}}
	})
	s.Service("p")
	s.EndpointsReady("p", 3)
	s.nodes = append(s.nodes, s.Nodes(nodes-3)...)
	s.remember()
	return s
}

// TestC66NodeAfterNode: the next node is begun when the replacement of the one before is Ready.
func TestC66NodeAfterNode(t *testing.T) {
	s := nodeAfterNode(t, 5)
	n1, n2 := s.nodes[0], s.nodes[1]
	on1, on2 := s.podsOn("p", n1)[0], s.podsOn("p", n2)[0]
	e := s.run(n1, n2, "--accept-unproven=all", "--timeout=100s")
	e.want(s, 0)
	fresh := append(s.podsOn("p", s.nodes[3]), s.podsOn("p", s.nodes[4])...)
	if len(fresh) != 2 {
		t.Fatalf("replacements: %v, want 2", fresh)
	}
	first, second := "evicted "+on1, "evicted "+on2
	if s.journal.get(first).rv > s.journal.get(second).rv {
		first, second = second, first
	}
	ready := min(s.journal.get("ready "+fresh[0]).rv, s.journal.get("ready "+fresh[1]).rv)
	if s.journal.get(first).rv > ready || ready > s.journal.get(second).rv {
		t.Errorf("%s at %d, a replacement Ready at %d, %s at %d: not in this order",
			first, s.journal.get(first).rv, ready, second, s.journal.get(second).rv)
	}
	s.back(n1, n2)
}

// TestC66ReplacementNeverReady: the run stops before the next node.
func TestC66ReplacementNeverReady(t *testing.T) {
	s := nodeAfterNode(t, 3)
	n1, n2 := s.nodes[0], s.nodes[1]
	on1, on2 := s.podsOn("p", n1)[0], s.podsOn("p", n2)[0]
	e := s.run(n1, n2, "--accept-unproven=all", "--timeout=6s")
	e.want(s, 4, "replacements are not Ready", s.Namespace+"/p")
	s.journal.get("gone " + on1)
	s.journal.never("evicted " + on2)
	s.holds(n2, true, false, true)
	s.back(n1, n2)
}
