package guard

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// placing is the world as placement reads it: nodes of 4 processors and 8Gi, with the pods of the world on them.
func (w *world) placing() *placement.Cluster {
	c := &placement.Cluster{Volumes: &placement.Volumes{}}
	for n := range w.Nodes() {
		c.Nodes = append(c.Nodes, placement.Node{Whole: true, Object: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels},
			Spec:       corev1.NodeSpec{Unschedulable: n.Cordoned, Taints: n.Taints},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
			}},
		}})
	}
	for _, p := range w.pods {
		c.Pods = append(c.Pods, placement.OccupantOf(p))
	}
	return c
}

// planPlaced plans a drain with placement judged.
func (w *world) planPlaced(nodes ...string) ServicePlan {
	p := Plan(w, Request{Nodes: nodes, Flags: Flags{GracePeriod: -1}, Cluster: w.placing()})
	return p.Services[0]
}

func (s *ServicePlan) finding(code Code) *Finding {
	for i := range s.Findings {
		if s.Findings[i].Code == code {
			return &s.Findings[i]
		}
	}
	return nil
}

// oneANode is required anti-affinity to pods of the same app, by host.
func oneANode(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}},
		}},
	}}
}

func wants(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

// webOn is one pod of web on each node, behind one Service.
func webOn(w *world, change func(*corev1.Pod), nodes ...string) *world {
	var endpoints []string
	for i, n := range nodes {
		name := "web" + string(rune('1'+i))
		w.pod(n, name, change)
		endpoints = append(endpoints, n+"=:"+name)
	}
	for i, e := range endpoints {
		endpoints[i] = strings.Replace(e, "=:", ":RS=", 1)
	}
	return w.service("web", announced(nodes, append(nodes, "n4")...), endpoints...)
}

// TestReplacements: what a plan says of the pods that come for those that go.
func TestReplacements(t *testing.T) {
	for name, c := range map[string]struct {
		world  *world
		drain  []string
		nodes  ServingNodes
		may    string
		reason string // of ReplacementUnschedulable, "" for none
	}{
		"as many as nodes, one a node": {
			world: webOn(newWorld("n1", "n2", "n3"), oneANode, "n1", "n2", "n3"), drain: []string{"n1"},
			nodes: ServingNodes{3, 2, 2, 3}, reason: "0 of 2 nodes: 2 pod anti-affinity",
		},
		"a node to spare": {
			world: webOn(newWorld("n1", "n2", "n3", "n4"), oneANode, "n1", "n2", "n3"), drain: []string{"n1"},
			nodes: ServingNodes{3, 2, 3, 3}, may: "n4",
		},
		"the spare node is leaving": {
			world: webOn(newWorld("n1", "n2", "n3", "n4"), oneANode, "n1", "n2", "n3").node("n4", func(n *NodeFacts) { n.Leaving = LeavingScaleDown }),
			drain: []string{"n1"}, nodes: ServingNodes{3, 2, 2, 3}, reason: "0 of 2 nodes: 2 pod anti-affinity",
		},
		"the spare node is cordoned": {
			world: webOn(newWorld("n1", "n2", "n3", "n4"), oneANode, "n1", "n2", "n3").node("n4", func(n *NodeFacts) { n.Cordoned = true }),
			drain: []string{"n1"}, nodes: ServingNodes{3, 2, 2, 3}, reason: "0 of 3 nodes: 2 pod anti-affinity, 1 cordoned",
		},
		"what goes first takes the room": {
			world: webOn(newWorld("n1", "n2"), wants("2"), "n1", "n2").pod("n1", "batch1", wants("1500m")), drain: []string{"n1"},
			nodes: ServingNodes{2, 1, 1, 2}, reason: "0 of 1 node: 1 too little cpu",
		},
		"a replacement that shares a node covers no further one": {
			world: webOn(newWorld("n1", "n2"), wants("1"), "n1", "n2"), drain: []string{"n1"}, nodes: ServingNodes{2, 1, 1, 1}, may: "n2",
		},
		"two nodes at once": {
			world: webOn(newWorld("n1", "n2", "n3", "n4"), oneANode, "n1", "n2", "n3"), drain: []string{"n1", "n2"},
			nodes: ServingNodes{3, 1, 2, 3}, may: "n4", reason: "0 of 2 nodes: 2 pod anti-affinity",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.world.planPlaced(c.drain...)
			if s.Replacements == nil {
				t.Fatal("nothing is said of replacements")
			}
			if d := cmp.Diff(c.nodes, s.Replacements.Nodes); d != "" {
				t.Errorf("nodes (-want +got):\n%s", d)
			}
			if got := s.Replacements.Pods[0].May; got != c.may {
				t.Errorf("may run on %q, want %q", got, c.may)
			}
			f := s.finding(ReplacementUnschedulable)
			switch {
			case (f != nil) != (c.reason != ""):
				t.Errorf("finding %+v, want reason %q", f, c.reason)
			case f != nil && (f.Severity != Warn || !strings.Contains(f.Message, c.reason) || f.Advice == ""):
				t.Errorf("finding %+v, want reason %q", f, c.reason)
			}
		})
	}
}

// TestReplacementsUnjudged: without a cluster to place in nothing is said, and pods that do not come back are not placed.
func TestReplacementsUnjudged(t *testing.T) {
	w := webOn(newWorld("n1", "n2"), oneANode, "n1", "n2")
	if p := w.plan(Flags{}, "n1"); p.Services[0].Replacements != nil {
		t.Errorf("without a cluster: %+v", p.Services[0].Replacements)
	}
	bare := newWorld("n1", "n2").pod("n1", "web1", func(p *corev1.Pod) { p.OwnerReferences = nil }).service("web", announced([]string{"n1"}, "n2"), "n1:RS=web1", "n2")
	if s := bare.planPlaced("n1"); s.Replacements != nil {
		t.Errorf("of a pod without a controller: %+v", s.Replacements)
	}
}

// TestHotSpot: nodes share evenly, so few nodes or few endpoints on one make an endpoint carry more.
func TestHotSpot(t *testing.T) {
	for name, c := range map[string]struct {
		world *world
		want  *Share
		hot   bool
	}{
		"three nodes become two": {
			world: webOn(newWorld("n1", "n2", "n3"), wants("1"), "n1", "n2", "n3"), want: &Share{Before: 1.0 / 3, After: 0.5, Node: "n3"}, hot: true,
		},
		"a further node takes the place": {
			world: webOn(newWorld("n1", "n2", "n3", "n4"), oneANode, "n1", "n2", "n3"), want: &Share{Before: 1.0 / 3, After: 1.0 / 3, Node: "n2"},
		},
		"one announces, and the next has fewer": {
			world: newWorld("n1", "n2").pod("n1", "web1").pod("n1", "web2", wants("4")).pod("n2", "web3", wants("4")).
				service("web", announced([]string{"n1"}, "n2"), "n1:RS=web1", "n1:RS=web2", "n2:RS=web3"),
			want: &Share{Before: 0.5, After: 0.5, Node: "n2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.world.planPlaced("n1")
			if d := cmp.Diff(c.want, s.Replacements.Share); d != "" {
				t.Errorf("share (-want +got):\n%s", d)
			}
			if f := s.finding(HotSpot); (f != nil) != c.hot {
				t.Errorf("finding %+v", f)
			}
		})
	}
}
