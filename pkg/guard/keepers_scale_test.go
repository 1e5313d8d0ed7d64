package guard

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// marked gives the pods of a Deployment the marks and costs that its nodes get.
func (s *scaled) marked(t *rapid.T) {
	svc := s.services[Key{"a", "web"}]
	for n := range s.Nodes() {
		r := &KeeperRequest{Read: scaleNow, Began: scaleNow}
		of := Serving{Service: "web", Sent: svc.SentTo(n), Spare: svc.Spare(s)}
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
		for _, c := range Keepers(r).Changes {
			byUID[string(c.UID)].Annotations[AnnotationKeeper] = c.Value
			switch c.Cost {
			case CostIsSet:
				byUID[string(c.UID)].Annotations[corev1.PodDeletionCost] = KeeperCost
			case CostIsIdle:
				byUID[string(c.UID)].Annotations[corev1.PodDeletionCost] = IdleCost
			default:
				t.Fatalf("a change without a cost: %+v", c)
			}
		}
	}
}

// Once the marks are there, no scale-down of a Deployment is refused for the sake of its controller's choice, however its pods
// stand on nodes that a balancer sends to, could send to, or leaves out.
func TestMarksMakeEveryScaleDownPass(t *testing.T) {
	refused := 0
	rapid.Check(t, func(rt *rapid.T) {
		var nodes, in, eligible, pods []string
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
		}
		if len(pods) < 2 {
			return
		}
		after := int32(rapid.IntRange(1, len(pods)-1).Draw(rt, "to"))
		avoidable := func(p *ScalePlan) bool { f := p.Finding(ScaleEmptiesNode); return f != nil && f.Severity == Block }
		s := deployment(nodes, pods...)
		plan := s.judge(announced(in, eligible...), after)
		if avoidable(&plan) {
			refused++
		}
		s.marked(rt)
		if plan = s.judge(announced(in, eligible...), after); avoidable(&plan) {
			rt.Errorf("in rotation %v, could be %v, pods on %v, to %d: %s", in, eligible, pods, after, told(&plan))
		}
	})
	if refused == 0 {
		t.Error("nothing was refused without marks: this shows nothing")
	}
}
