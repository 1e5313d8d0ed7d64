package guard

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestJudgeScale(t *testing.T) {
	three := []string{"n1", "n2", "n3"}
	floor := func(text string) func(*ServiceFacts) { return func(s *ServiceFacts) { s.Floor = text } }
	metallb := func(s *ServiceFacts) { announced(three)(s) }
	for name, test := range map[string]struct {
		pods   []string
		change func(*ServiceFacts)
		after  int32
		others []string // further endpoints
		want   string
		why    string
	}{
		"up":          {pods: three, after: 5, want: "floor 3", why: "a scale-up is never refused"},
		"equal":       {pods: three, after: 3, want: "floor 3", why: "nothing changes"},
		"up to below": {pods: []string{"n1"}, after: 2, want: "floor 3", why: "a scale-up passes, also below the floor"},
		"below the floor": {
			pods: three, after: 2, want: "floor 3; BelowFloor Block; ScaleEmptiesNode maybe n1,maybe n2,maybe n3 Warn",
			why: "two pods cannot cover three nodes; the pods are alike",
		},
		"below the floor already": {
			pods: []string{"n1", "n1"}, after: 1, want: "floor 3; BelowFloor Block", why: "a scale-down below the floor is one, wherever it begins",
		},
		"down to the floor": {pods: append(three, "n1"), after: 3, want: "floor 3", why: "the doubled node gives one of its two"},
		"the measured fault": {
			pods: []string{"n1", "n1", "n1", "n2", "n2"}, change: floor("2"), after: 2,
			want: "floor 2; ScaleEmptiesNode n1 Block; keep web0,web3", why: "3+2 scaled to 2: all three of n1 go at once",
		},
		"with keepers": {
			pods: []string{"n1:+", "n1", "n1", "n2:+", "n2"}, change: floor("2"), after: 2, want: "floor 2", why: "a cost on one pod a node mends it",
		},
		"a marked pod is the one to keep": {
			pods: []string{"n1", "n1:k", "n1", "n2", "n2:k"}, change: floor("2"), after: 2,
			want: "floor 2; ScaleEmptiesNode n1 Block; keep web1,web4", why: "marks are honoured where there is a choice",
		},
		"a low cost": {
			pods: []string{"n1", "n1", "n2:-"}, change: floor("1"), after: 2,
			want: "floor 1; ScaleEmptiesNode n2 Block; keep web0,web2", why: "the controller takes the only pod of n2",
		},
		"floor off": {
			pods: []string{"n1", "n1", "n2:-"}, change: floor("off"), after: 2,
			want: "floor 0; ScaleEmptiesNode n2 Warn; keep web0,web2", why: "the owner wants no floor: said, not refused",
		},
		"another workload serves there": {
			pods: []string{"n1", "n1", "n2:-"}, change: floor("1"), after: 2, others: []string{"n2=other"}, want: "floor 0", why: "n2 keeps an endpoint",
		},
		"others give to the floor": {
			pods: three, after: 2, others: []string{"n3=other"}, want: "floor 2; ScaleEmptiesNode maybe n1,maybe n2 Block; keep web0,web1",
			why: "n3 is covered by another, so one of ours may go: but the controller may take another one",
		},
		"others give no more than nodes": {
			pods: three, after: 2, others: []string{"n3=other", "n3=another"}, want: "floor 2; ScaleEmptiesNode maybe n1,maybe n2 Block; keep web0,web1",
			why: "two endpoints on one node cover one node",
		},
		"unready pods go first": {pods: []string{"n1", "n1:u", "n2", "n3"}, after: 3, want: "floor 3", why: "it was no endpoint"},
		"percent":               {pods: three, change: floor("50%"), after: 2, want: "floor 2; ScaleEmptiesNode maybe n1,maybe n2,maybe n3 Warn", why: "rounded up; unavoidable"},
		"more than there are":   {pods: three, change: floor("7"), after: 2, want: "floor 7; BelowFloor Block; ScaleEmptiesNode maybe n1,maybe n2,maybe n3 Warn", why: "the owner's word"},
		"no floor at all":       {pods: three, change: floor("x"), after: 3, want: "floor 3; FloorUnreadable Warn", why: "a mistake is no permission"},
		"nobody sends": {
			pods: three, change: func(s *ServiceFacts) { s.Rotation.Nobody = true }, after: 0, want: "floor 0", why: "nothing to keep up",
		},
		"the balancer follows, full": {pods: three, change: metallb, after: 2, want: "floor 3; BelowFloor Block; ScaleEmptiesNode maybe n1,maybe n2,maybe n3 Warn", why: "full coverage is what is run here"},
		"the balancer follows, not full": {
			pods: []string{"n1", "n2"}, change: metallb, after: 1, want: "floor 1; ScaleEmptiesNode maybe n1,maybe n2 Warn", why: "n3 is empty and not sent to: one endpoint is enough",
		},
		"a health check, not full": {
			pods: []string{"n1", "n2"}, change: func(s *ServiceFacts) { s.Rotation.HealthCheck = &HealthCheck{} }, after: 1,
			want: "floor 1; ScaleEmptiesNode maybe n1,maybe n2 Warn", why: "an honoured check follows the endpoints too",
		},
		"not sent to": {
			pods: []string{"n1", "n2:-"}, change: announced([]string{"n1"}, "n1"), after: 1, want: "floor 1", why: "n2 is in no rotation",
		},
		"all go": {
			pods: three, change: floor("off"), after: 0, want: "floor 0; ScaleEmptiesNode n1,n2,n3 Warn", why: "whichever go",
		},
		"inside": {
			pods: three, change: func(s *ServiceFacts) { s.External, s.Internal = false, true }, after: 2,
			want: "floor 0; InternalLosesLocal n1,n2,n3 Warn", why: "no rotation: never more than a warning",
		},
		"policy Cluster": {pods: three, change: func(s *ServiceFacts) { s.External = false }, after: 0, want: "floor 0", why: "nothing is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			p := deployment(three, test.pods...).judge(test.change, test.after, test.others...)
			if got := told(&p); got != test.want {
				t.Errorf("got  %s\nwant %s\n%s", got, test.want, test.why)
			}
			refused := p.Finding(BelowFloor) != nil || p.Finding(ScaleEmptiesNode) != nil && p.Finding(ScaleEmptiesNode).Severity == Block
			if p.Refused() != refused {
				t.Errorf("refused %t with %s", p.Refused(), told(&p))
			}
		})
	}
}

func TestClamped(t *testing.T) {
	for name, test := range map[string]struct{ before, after, floor, want int }{
		"above":                {6, 4, 3, 4},
		"below":                {6, 2, 3, 3},
		"below already":        {2, 1, 3, 2},
		"up, below still":      {1, 2, 3, 2},
		"no floor":             {6, 0, 0, 0},
		"from nothing":         {0, 2, 3, 2},
		"to nothing":           {3, 0, 3, 3},
		"a floor of the moon":  {3, 1, 1000, 3},
		"equal, whatever else": {3, 3, 9, 3},
	} {
		p := ScalePlan{Workload: ScaledWorkload{Replicas: Count{test.before, test.after}}, Floor: Floor{Value: int32(test.floor)}}
		if got := int(p.Clamped()); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestScaleNodes: which nodes raise the floor.
func TestScaleNodes(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*NodeFacts)
		floor  int32
	}{
		"as it is":         {func(*NodeFacts) {}, 3},
		"not Ready":        {func(n *NodeFacts) { n.Ready = false }, 2},
		"Ready for 9 min":  {func(n *NodeFacts) { n.ReadySince = scaleNow.Add(-9 * 60 * 1e9) }, 2},
		"Ready for 11 min": {func(n *NodeFacts) { n.ReadySince = scaleNow.Add(-11 * 60 * 1e9) }, 3},
		"leaving":          {func(n *NodeFacts) { n.Leaving = LeavingScaleDown }, 2},
		"cordoned":         {func(n *NodeFacts) { n.Cordoned = true }, 3},
		"virtual":          {func(n *NodeFacts) { n.Virtual = true }, 2},
		"excluded":         {func(n *NodeFacts) { n.Excluded = new(string) }, 2},
		"control plane":    {func(n *NodeFacts) { n.ControlPlane = true }, 2},
		"tainted": {func(n *NodeFacts) {
			n.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, 2},
	} {
		s := deployment([]string{"n1", "n2", "n3"}, "n1", "n2", "n3")
		s.node("n3", test.change)
		if p := s.judge(nil, 3); p.Floor.Value != test.floor {
			t.Errorf("%s: floor %d (%s), want %d", name, p.Floor.Value, p.Floor.Source, test.floor)
		}
	}
}

// TestSeveralServices: the largest floor counts, and each Service's endpoints are its own.
func TestSeveralServices(t *testing.T) {
	s := deployment([]string{"n1", "n2"}, "n1", "n2:-")
	s.service("admin", func(f *ServiceFacts) { f.Floor = "2" }, "n2=web1")
	p := s.judge(func(f *ServiceFacts) { f.Floor = "1" }, 1)
	if p.Floor.Value != 2 || p.Floor.Service != "a/admin" || len(p.Services) != 2 {
		t.Errorf("floor %+v of %d Services", p.Floor, len(p.Services))
	}
	if got, want := told(&p), "floor 2; BelowFloor Block; ScaleEmptiesNode n2 Block; ScaleEmptiesNode n2 Warn; keep web1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAutoscalers(t *testing.T) {
	for name, test := range map[string]struct {
		min, max int32
		want     bool
	}{"fits": {3, 9, false}, "may ask for less": {2, 9, true}, "never gets there": {1, 2, true}} {
		s := deployment([]string{"n1", "n2", "n3"}, "n1", "n2", "n3")
		s.target.Autoscalers = []Autoscaler{{Key: Key{"a", "web"}, Min: test.min, Max: test.max}}
		p := s.judge(nil, 3)
		if got := p.Finding(AutoscalerBelowFloor) != nil; got != test.want || p.Refused() {
			t.Errorf("%s: %t, want %t; refused %t", name, got, test.want, p.Refused())
		}
	}
}

// TestUnknownController: nobody knows which pods it takes, so nothing but the floor refuses.
func TestUnknownController(t *testing.T) {
	s := deployment([]string{"n1", "n2"}, "n1", "n1", "n2")
	s.target.Kind, s.target.Deployment, s.target.ReplicaSets = "Rollout", nil, nil
	s.target.Selector = labels.SelectorFromSet(labels.Set{"app": "web"})
	p := s.judge(nil, 2)
	if got, want := going(&p), "web0? web1? web2?"; got != want {
		t.Errorf("victims %s, want %s", got, want)
	}
	if got, want := told(&p), "floor 2; ScaleEmptiesNode maybe n2 Warn"; got != want || p.Refused() {
		t.Errorf("%s, want %s", got, want)
	}
	if p = s.judge(nil, 1); !p.Refused() {
		t.Error("below the floor and not refused")
	}
}

// TestScaleDocument: empty lists are lists, and what is listed is sorted.
func TestScaleDocument(t *testing.T) {
	s := deployment([]string{"n1"}, "n1")
	s.target.Services = nil
	p := JudgeScale(s.target, s, 0, scaleNow)
	if p.Services == nil || p.Findings == nil || p.Keepers == nil || p.Floor.Nodes == nil || len(p.Victims) != 1 || p.Verdict != Safe {
		t.Errorf("%+v", p)
	}
	if p.Workload.Pods != (Count{Before: 1}) || p.Workload.Replicas != (Count{Before: 1}) {
		t.Errorf("%+v", p.Workload)
	}
}
