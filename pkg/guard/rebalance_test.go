package guard

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestSpares: a pod is spare where its node keeps an endpoint of each of its Services, and the most crowded node comes first.
func TestSpares(t *testing.T) {
	for name, test := range map[string]struct {
		world *world
		want  string
	}{
		"one a node": {newWorld("n1", "n2").service("web", nil, "n1:RS=p1", "n2:RS=p2"), ""},
		"the crowd first": {
			newWorld("n1", "n2").service("web", nil, "n1:RS=p1", "n1:RS=p2", "n2:RS=p3", "n2:RS=p4", "n2:RS=p5"), "p3 p4 p5 p1 p2",
		},
		"the other one is not Ready": {newWorld("n1").service("web", nil, "n1:RS=p1", "n1:=p2"), ""},
		"the other one terminates":   {newWorld("n1").service("web", nil, "n1:RS=p1", "n1:ST=p2"), ""},
		"the last one of another Service": {
			newWorld("n1").service("web", nil, "n1:RS=p1", "n1:RS=p2").service("api", nil, "n1:RS=p1"), "p2",
		},
		"a node that leaves": {
			newWorld("n1").node("n1", func(n *NodeFacts) { n.Leaving = LeavingDeleted }).service("web", nil, "n1:RS=p1", "n1:RS=p2"), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc, _ := test.world.Service(Key{"a", "web"})
			var got []string
			for _, s := range Spares(svc, test.world) {
				got = append(got, string(s.UID))
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("spare pods (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWantsEndpoint(t *testing.T) {
	follows := func(s *ServiceFacts) {
		s.Rotation = Rotation{Hook: "x", Follows: true, Rest: Seat{In: Yes, Eligible: true}}
	}
	nobody := func(s *ServiceFacts) { s.Rotation.Nobody = true }
	for name, test := range map[string]struct {
		world *world
		want  bool
	}{
		"sent to all the same":      {newWorld("n1", "n2", "n3").service("web", nil, "n2:RS=p1", "n2:RS=p2"), true},
		"the only gap":              {newWorld("n1", "n2", "n3").service("web", follows, "n2:RS=p1", "n2:RS=p2", "n3:RS=p3"), true},
		"one gap of several":        {newWorld("n1", "n2", "n3").service("web", follows, "n2:RS=p1", "n2:RS=p2"), false},
		"nobody sends from outside": {newWorld("n1", "n2").service("web", nobody, "n2:RS=p1", "n2:RS=p2"), false},
	} {
		t.Run(name, func(t *testing.T) {
			svc, _ := test.world.Service(Key{"a", "web"})
			if got := WantsEndpoint(svc, test.world, &corev1.PodSpec{}, []string{"n1"}); got != test.want {
				t.Errorf("wants one on n1: %v, want %v", got, test.want)
			}
		})
	}
}

func TestMayMove(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		local  bool
		want   string
	}{
		"may":            {func(*corev1.Pod) {}, false, ""},
		"no controller":  {func(p *corev1.Pod) { p.OwnerReferences = nil }, false, "no controller makes another one in its place"},
		"the gate's":     {func(p *corev1.Pod) { p.Annotations = map[string]string{AnnotationKeeper: "web"} }, false, "the gate keeps it"},
		"local storage":  {emptyDir, false, "it has local storage (emptyDir)"},
		"its loss taken": {emptyDir, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2").pod("n2", "p1", test.change)
			if got := MayMove(&Spare{Pod: Key{"a", "p1"}, UID: "p1", Node: "n2"}, "n1", w, nil, test.local); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
