package guard

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// randomWorld draws a small cluster: up to five nodes, up to three Services with up to six endpoints in any condition,
// some of them with pods, and any kind of rotation.
func randomWorld(t *rapid.T) *world {
	nodes := []string{"n1", "n2", "n3", "n4", "n5"}[:rapid.IntRange(1, 5).Draw(t, "nodes")]
	w := newWorld(nodes...)
	for _, n := range nodes {
		w.node(n, func(f *NodeFacts) {
			f.Ready = rapid.Bool().Draw(t, "ready") || rapid.Bool().Draw(t, "ready too")
			f.Virtual = rapid.IntRange(0, 9).Draw(t, "virtual") == 0
			f.ControlPlane = rapid.IntRange(0, 9).Draw(t, "control plane") == 0
			f.Leaving = rapid.SampledFrom([]Leaving{Stays, Stays, Stays, LeavingScaleDown}).Draw(t, "leaving")
		})
	}
	for s := range rapid.IntRange(1, 3).Draw(t, "services") {
		var endpoints []string
		for e := range rapid.IntRange(0, 6).Draw(t, "endpoints") {
			node := rapid.SampledFrom(append(nodes, "", "gone")).Draw(t, "node")
			flags := rapid.SampledFrom([]string{"RS", "RS", "ST", "", "RST", "T", "S"}).Draw(t, "conditions")
			pod := ""
			if node != "" && node != "gone" && rapid.Bool().Draw(t, "has a pod") {
				pod = fmt.Sprintf("p%d%d", s, e)
				w.pod(node, pod, func(p *corev1.Pod) {
					if rapid.IntRange(0, 5).Draw(t, "dying") == 0 {
						dying(p)
					}
				})
				pod = "=" + pod
			}
			endpoints = append(endpoints, node+":"+flags+pod)
		}
		w.service(fmt.Sprintf("s%d", s), randomRotation(t, nodes), endpoints...)
	}
	return w
}

func randomRotation(t *rapid.T, nodes []string) func(*ServiceFacts) {
	return func(s *ServiceFacts) {
		s.External = rapid.IntRange(0, 3).Draw(t, "external") > 0
		s.Internal = rapid.IntRange(0, 3).Draw(t, "internal") == 0
		s.PublishNotReady = rapid.IntRange(0, 3).Draw(t, "publish") == 0
		switch rapid.IntRange(0, 3).Draw(t, "rotation") {
		case 0:
			announced(rapid.SliceOfN(rapid.SampledFrom(nodes), 0, 2).Draw(t, "in"), nodes...)(s)
		case 1:
			checked(s)
		case 2:
			s.Rotation.Nobody = true
		}
	}
}

// TestPlanProperties states what holds of every plan, whatever the cluster.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := randomWorld(t)
		drained := rapid.SliceOfNDistinct(rapid.SampledFrom(slices.Collect(nodeNames(w))), 1, -1, rapid.ID[string]).Draw(t, "drained")
		plan := w.plan(Flags{}, drained...)
		for i := range plan.Services {
			checkService(t, w, plan, &plan.Services[i])
		}
		forced := w.plan(Flags{AcceptUnproven: []string{"all"}, ForceUnsafe: []string{"all"}}, drained...)
		if forced.Refused() {
			t.Fatalf("refused although everything was accepted: %+v", forced.Findings)
		}
		if again := w.plan(Flags{}, drained...); fmt.Sprint(again) != fmt.Sprint(plan) {
			t.Fatalf("two plans of one cluster differ")
		}
	})
}

func checkService(t *rapid.T, w *world, plan DrainPlan, s *ServicePlan) {
	svc := w.services[s.Key()]
	emptied := false
	for _, row := range s.Nodes {
		drained := slices.Contains(plan.Nodes, row.Name)
		best, _ := Usable(svc.Ports[0].Endpoints, row.Name)
		if best != row.Before {
			t.Fatalf("%s on %s: before %s, kube-proxy's rule says %s", s.Name, row.Name, row.Before, best)
		}
		if drained != (row.After != row.Before) && row.Before != StateEmpty {
			t.Fatalf("%s on %s: %s -> %s, drained %v", s.Name, row.Name, row.Before, row.After, drained)
		}
		emptied = emptied || (drained && row.InRotation != No && svc.External)
	}
	if emptied && s.Verdict == Safe {
		t.Fatalf("%s: a node in rotation is emptied and the verdict is Safe", s.Name)
	}
	if s.Endpoints.After > 0 && slices.ContainsFunc(s.Findings, func(f Finding) bool { return f.Code == LastEndpoint }) {
		t.Fatalf("%s: LastEndpoint with %d endpoints left", s.Name, s.Endpoints.After)
	}
	if !svc.External && s.Verdict != Safe {
		t.Fatalf("%s: verdict %s of a Service that nobody outside reaches", s.Name, s.Verdict)
	}
	if plan.Verdict == Safe && s.Verdict != Safe {
		t.Fatalf("the plan is Safe and %s is %s", s.Name, s.Verdict)
	}
}

func nodeNames(w *world) func(func(string) bool) {
	return func(yield func(string) bool) {
		for n := range w.Nodes() {
			if !yield(n.Name) {
				return
			}
		}
	}
}

// FuzzPlan drives the same properties from bytes, for go test -fuzz.
func FuzzPlan(f *testing.F) {
	f.Add([]byte("safedrain"))
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		w := randomWorld(t)
		plan := w.plan(Flags{}, "n1")
		for i := range plan.Services {
			checkService(t, w, plan, &plan.Services[i])
		}
	}))
}
