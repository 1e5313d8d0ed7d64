package guard

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// A pod that is alone on its node stays although its controller is blind to nodes, or another workload's pods are beside those of
// its own elsewhere.
func TestMarksOfPodsThatAreAlone(t *testing.T) {
	refused := func(s *scaled, after int32) bool {
		plan := s.judge(announced([]string{"n0", "n1"}), after)
		f := plan.Finding(ScaleEmptiesNode)
		return f != nil && f.Severity == Block
	}
	bare := deployment([]string{"n0", "n1"}, "n0", "n0", "n1").bare()
	two := deployment([]string{"n0", "n1"}, "n0", "n1")
	two.beside("n0")
	for name, tc := range map[string]struct {
		s     *scaled
		after int32
	}{"a ReplicaSet without a Deployment": {bare, 2}, "two workloads": {two, 1}} {
		if !refused(tc.s, tc.after) {
			t.Errorf("%s: without marks it is not refused: this shows nothing", name)
		}
		tc.s.marked(t)
		if refused(tc.s, tc.after) {
			t.Errorf("%s: refused with marks", name)
		}
	}
}

// marked gives the pods of a Deployment the marks and costs that its nodes get.
func (s *scaled) marked(t tester) {
	svc := s.services[Key{"a", "web"}]
	s.mark(t, svc, svc.Spare(s) || s.mark(t, svc, svc.Spare(s)))
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Fatalf(format string, args ...any)
}

// mark is a look at all nodes; it reports whether one is uneven.
func (s *scaled) mark(t tester, svc *ServiceFacts, spare bool) (uneven bool) {
	for n := range s.Nodes() {
		r := &KeeperRequest{Read: scaleNow, Began: scaleNow}
		of := Serving{Service: "web", Sent: svc.SentTo(n), Spare: spare}
		byUID := map[string]*corev1.Pod{}
		for _, p := range s.target.Pods {
			if p.Spec.NodeName != n.Name {
				continue
			}
			byUID[string(p.UID)] = p
			of.Pods = append(of.Pods, p.UID)
			k := KeptPodOf(p)
			k.Addressed = true
			r.Pods = append(r.Pods, k)
		}
		if r.Serving = []Serving{of}; len(of.Pods) == 0 || !svc.Rotation.Seat(n.Name).Eligible {
			continue
		}
		plan := Keepers(r)
		uneven = uneven || len(plan.Uneven) > 0
		for _, c := range plan.Changes {
			byUID[string(c.UID)].Annotations[AnnotationKeeper] = c.Value
			switch c.Cost {
			case CostIsSet:
				byUID[string(c.UID)].Annotations[corev1.PodDeletionCost] = KeeperCost
			case CostIsIdle:
				byUID[string(c.UID)].Annotations[corev1.PodDeletionCost] = IdleCost
			case CostIsShared:
				byUID[string(c.UID)].Annotations[corev1.PodDeletionCost] = SharedCost
			default:
				t.Fatalf("a change without a cost: %+v", c)
			}
		}
	}
	return uneven
}

// Once the marks are there, no scale-down of a Deployment is refused for the sake of its controller's choice, however its pods
// stand on nodes that a balancer sends to, could send to, or leaves out.
func TestMarksMakeEveryScaleDownPass(t *testing.T) {
	refused := 0
	rapid.Check(t, func(rt *rapid.T) {
		var nodes, in, eligible, pods, others []string
		for i := range rapid.IntRange(1, 4).Draw(rt, "nodes") {
			n := fmt.Sprintf("n%d", i)
			nodes = append(nodes, n)
			switch rapid.IntRange(0, 3).Draw(rt, "seat of "+n) {
			case 0:
			case 1:
				eligible = append(eligible, n)
			default:
				in = append(in, n)
			}
			for range rapid.IntRange(0, 3).Draw(rt, "pods on "+n) {
				pods = append(pods, n)
			}
			if rapid.IntRange(0, 3).Draw(rt, "another workload on "+n) == 0 {
				others = append(others, n)
			}
		}
		bare := rapid.Bool().Draw(rt, "a ReplicaSet without a Deployment")
		if len(pods) < 2 {
			return
		}
		after := int32(rapid.IntRange(1, len(pods)-1).Draw(rt, "to"))
		avoidable := func(p *ScalePlan) bool { f := p.Finding(ScaleEmptiesNode); return f != nil && f.Severity == Block }
		s := deployment(nodes, pods...)
		if bare {
			s = s.bare()
		}
		s.beside(others...)
		plan := s.judge(announced(in, eligible...), after)
		if avoidable(&plan) {
			refused++
		}
		s.marked(rt)
		if plan = s.judge(announced(in, eligible...), after); avoidable(&plan) {
			rt.Errorf("in rotation %v, could be %v, pods on %v, bare %t, others on %v, to %d: %s", in, eligible, pods, bare, others, after, told(&plan))
		}
	})
	if refused == 0 {
		t.Error("nothing was refused without marks: this shows nothing")
	}
}
