package placement

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestPlaceAll: replacements take room, ports and the place among their siblings, one after the other.
func TestPlaceAll(t *testing.T) {
	three := []*corev1.Node{aNode("n1"), aNode("n2"), aNode("n3")}
	web := func(name string, more ...podOption) *corev1.Pod {
		return Replacement(aPod(name, append(more, ownedBy("web"))...))
	}
	for name, c := range map[string]struct {
		nodes []*corev1.Node
		there []*corev1.Pod
		leave string
		pods  []*corev1.Pod
		want  []string // the node of each, or why none
	}{
		"each on its own": {
			nodes: three, pods: []*corev1.Pod{web("web-1"), web("web-2"), web("web-3")}, want: []string{"n1", "n2", "n3"},
		},
		"where there is room": {
			nodes: three, there: []*corev1.Pod{aPod("x-1", on("n1"), requests("cpu=3")), aPod("x-2", on("n2"), requests("cpu=3500m"))},
			pods: []*corev1.Pod{web("web-1", requests("cpu=1")), web("web-2", requests("cpu=1")), web("web-3", requests("cpu=1"))},
			want: []string{"n3", "n1", "n3"},
		},
		"the last finds none": {
			nodes: three[:2], pods: []*corev1.Pod{web("web-1", far(host, "web")), web("web-2", far(host, "web")), web("web-3", far(host, "web"))},
			want: []string{"n1", "n2", "0 of 2 nodes: 2 pod anti-affinity"},
		},
		"a node that leaves takes nothing and is not counted": {
			nodes: three, leave: "n1", pods: []*corev1.Pod{web("web-1", selects(host, "n1"))},
			want: []string{"0 of 2 nodes: 2 not in its node selector"},
		},
		"a drained node still counts for spread": {
			nodes: three, leave: "n3", there: []*corev1.Pod{aPod("web-1", on("n1")), aPod("web-2", on("n2"))},
			pods: []*corev1.Pod{web("web-3", spreads(1, host, corev1.DoNotSchedule))},
			want: []string{"0 of 2 nodes: 2 spread over kubernetes.io/hostname"},
		},
		"one waits for another": {
			nodes: three[:1], pods: []*corev1.Pod{web("web-1", near(host, "db")), Replacement(aPod("db"))}, want: []string{"n1", "n1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask{nodes: c.nodes, there: c.there}
			s := New(a.cluster())
			if c.leave != "" {
				s.Leave(c.leave, "drained")
			}
			var got []string
			for _, p := range s.PlaceAll(c.pods) {
				if p.Node == "" {
					got = append(got, p.Answer.String())
					continue
				}
				got = append(got, p.Node)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestEvictAndReturn: what goes leaves no trace, and a node that is back is one as before.
func TestEvictAndReturn(t *testing.T) {
	gone := aPod("web-1", on("n1"), requests("cpu=4"), hostPort("", 80, ""), far(host, "web"), claims("alone"))
	a := ask{nodes: []*corev1.Node{aNode("n1")}, there: []*corev1.Pod{gone}, volumes: store()}
	s := New(a.cluster())
	next := aPod("web-2", requests("cpu=4"), hostPort("", 80, ""), claims("alone"))
	if got := s.Candidates(next); got.Fits() {
		t.Fatalf("beside the first: %+v", got)
	}
	s.Evict(gone.UID)
	s.Evict(gone.UID)
	if got := s.Candidates(next); len(got.Nodes) != 1 {
		t.Fatalf("after the first has gone: %+v", got)
	}
	s.Leave("n1", "drained")
	if got := s.Candidates(next); len(got.Nodes)+len(got.Refused) != 0 {
		t.Fatalf("with the node away: %+v", got)
	}
	s.Return("n1")
	if got := s.Candidates(next); len(got.Nodes) != 1 {
		t.Fatalf("with the node back: %+v", got)
	}
}

// TestUnmeasured: a node of a manifest that does not say what it has is no refusal either.
func TestUnmeasured(t *testing.T) {
	n := aNode("n1")
	n.Status.Allocatable = nil
	got := answers(New(&Cluster{Nodes: []Node{{Object: n, Whole: true}}}).Candidates(aPod("web", requests("cpu=1"))))
	if d := cmp.Diff(map[string]string{"n1": "unread"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestUnread: a node whose pods are not at hand is no refusal, and what is known of it may be one.
func TestUnread(t *testing.T) {
	c := &Cluster{Volumes: &Volumes{}, Nodes: []Node{{Object: aNode("n1")}, {Object: aNode("n2", cordon)}, {Object: aNode("n3"), Whole: true}}}
	c.Pods = append(c.Pods, OccupantOf(aPod("web-1", on("n3"))))
	got := answers(New(c).Candidates(aPod("web-2", far(host, "web"))))
	if d := cmp.Diff(map[string]string{"n1": "unread", "n2": "cordoned", "n3": "pod anti-affinity"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestString: what stops a pod, the most frequent reason first.
func TestString(t *testing.T) {
	a := Answer{Refused: []Refusal{
		{"n1", "taint x", ""}, {"n2", "too little cpu", ""}, {"n3", "too little cpu", ""}, {"n4", "a", ""}, {"n5", "b", ""}, {"n6", "c", ""},
	}}
	if got, want := a.String(), "0 of 6 nodes: 2 too little cpu, 1 a, 1 b, 1 c, +1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLend: a state that is given back is lent again as if nothing had been done to it.
func TestLend(t *testing.T) {
	a, b := aNode("a", offers("cpu=2,pods=10")), aNode("b", offers("cpu=2,pods=10"))
	old := aPod("x/web-1", on("a"), requests("cpu=2"), ownedBy("web"), far(host, "web"))
	c := &Cluster{Nodes: []Node{{Object: a, Whole: true}, {Object: b, Whole: true}}, Pods: []Occupant{OccupantOf(old)}}
	next := Replacement(aPod("x/web-2", requests("cpu=2"), ownedBy("web"), far(host, "web")))
	for round := range 3 {
		s, giveBack := c.Lend()
		if got := s.Candidates(next).Nodes; !slices.Equal(got, []string{"b"}) {
			t.Errorf("round %d: %v, want b", round, got)
		}
		s.Leave("b", "drained")
		s.Evict(old.UID)
		if got := s.PlaceAll([]*corev1.Pod{next}); got[0].Node != "a" {
			t.Errorf("round %d: placed on %q, want a: %+v", round, got[0].Node, got[0].Answer)
		}
		s.Return("b")
		if other, _ := c.Lend(); other == s {
			t.Fatal("one state was lent twice at a time")
		}
		giveBack()
	}
}
