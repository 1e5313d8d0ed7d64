package guard

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestService has a row for each rule about one Service, with the reason for the answer in its name.
func TestService(t *testing.T) {
	declared := func(s *ServiceFacts) {
		s.Rotation = Rotation{Declared: true, Seats: map[string]Seat{"n1": {Yes, true, ""}, "n2": {Yes, true, ""}}, Rest: Seat{In: No}}
	}
	drained := func(change func(*NodeFacts)) *world {
		return newWorld("n1", "n2").node("n2", change).service("s", announced([]string{"n1"}, "n2"), "n1", "n2")
	}
	settle := time.Minute
	for name, tc := range map[string]struct {
		world   *world
		nodes   []string
		stayUp  bool
		verdict Verdict
		count   Count
		want    []string
	}{
		"another announcer can take over": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n2"), nil, false,
			Withdraw,
			Count{2, 1},
			[]string{"LosesLocalEndpoint:Info[n1]"},
		},
		"the only endpoint": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1"), nil, false,
			Unsafe,
			Count{1, 0},
			[]string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"two endpoints, both on the node": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n1"), nil, false,
			Unsafe,
			Count{2, 0},
			[]string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"the other endpoint is where the balancer does not send": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}), "n1", "n2"), nil, false,
			Unsafe,
			Count{1, 0},
			[]string{"NoEligibleNode:Block[n1]", "LosesLocalEndpoint:Info[n1]", "NotAdvertised:Info[n2]"},
		},
		"a node that is not sent to loses nothing": {
			newWorld("n1", "n2").service("s", announced([]string{"n2"}), "n1", "n2"), nil, false,
			Safe,
			Count{1, 1},
			[]string{},
		},
		"both nodes at once": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n2"),
			[]string{"n1", "n2"},
			false,
			Unsafe,
			Count{2, 0},
			[]string{"LastEndpoint:Block[n1 n2]", "LosesLocalEndpoint:Info[n1]"},
		},
		"the other endpoint terminates": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n2:ST"), nil, false,
			Unsafe,
			Count{2, 0},
			[]string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"the other endpoint says ready while it terminates": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n2:RST"), nil, false,
			Unsafe,
			Count{2, 0},
			[]string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"the other endpoint is not ready": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n2:"), nil, false,
			Unsafe,
			Count{1, 0},
			[]string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"an endpoint that is not ready on the node is no loss": {
			newWorld("n1", "n2").service("s", announced([]string{"n2"}, "n1"), "n1:", "n2"), nil, false,
			"",
			Count{},
			nil,
		},
		"the other node is not Ready":      {drained(func(n *NodeFacts) { n.Ready = false }), nil, false, Unsafe, Count{2, 0}, []string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"}},
		"the other node is leaving":        {drained(func(n *NodeFacts) { n.Leaving = LeavingScaleDown }), nil, false, Unsafe, Count{2, 0}, []string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"}},
		"the other node is only cordoned":  {drained(func(n *NodeFacts) { n.Cordoned = true }), nil, false, Withdraw, Count{2, 1}, []string{"LosesLocalEndpoint:Info[n1]"}},
		"the other node is virtual":        {drained(func(n *NodeFacts) { n.Virtual = true }), nil, false, Unsafe, Count{1, 0}, []string{"NoEligibleNode:Block[n1]", "LosesLocalEndpoint:Info[n1]"}},
		"the other node is claimed by us":  {drained(func(n *NodeFacts) { n.Leaving, n.Claim = LeavingClaimed, &Claim{Run: "me"} }), nil, false, Withdraw, Count{2, 1}, []string{"LosesLocalEndpoint:Info[n1]"}},
		"the other node is claimed by one": {drained(func(n *NodeFacts) { n.Leaving, n.Claim = LeavingClaimed, &Claim{Run: "you"} }), nil, false, Unsafe, Count{2, 0}, []string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"}},
		"an endpoint on a node that is gone is not left": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2", "n9"), "n1", "n9"), nil, false,
			Unsafe,
			Count{1, 0},
			[]string{"LastEndpoint:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"a bare NodePort": {
			newWorld("n1", "n2").service("s", nil, "n1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"a bare NodePort with an empty node": {
			newWorld("n1", "n2", "n3").service("s", nil, "n1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "ExistingBlackhole:Warn[n3]", "LosesLocalEndpoint:Info[n1]"},
		},
		"control plane, excluded and NotReady nodes are no blackholes": {
			newWorld("n1", "n2", "n3", "n4", "n5").service("s", nil, "n1", "n2").
				node("n3", func(n *NodeFacts) { n.ControlPlane = true }).
				node("n4", func(n *NodeFacts) { v := "false"; n.Excluded = &v }).
				node("n5", func(n *NodeFacts) { n.Ready = false }), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"a balancer nobody knows": {
			newWorld("n1", "n2", "n3").service("s", func(s *ServiceFacts) { s.Type = corev1.ServiceTypeLoadBalancer }, "n1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "ExistingBlackhole:Info[n3]", "LosesLocalEndpoint:Info[n1]"},
		},
		"declared nodes": {
			newWorld("n1", "n2", "n3").service("s", declared, "n1", "n3"), nil, false,
			Unsafe,
			Count{1, 0},
			[]string{"NoEligibleNode:Block[n1]", "ExistingBlackhole:Warn[n2]", "LosesLocalEndpoint:Info[n1]", "NotAdvertised:Info[n3]"},
		},
		"nobody outside sends": {
			newWorld("n1", "n2").service("s", func(s *ServiceFacts) { s.Rotation = Rotation{Nobody: true} }, "n1"), nil, false,
			Safe,
			Count{0, 0},
			[]string{},
		},
		"the hook cannot work": {
			newWorld("n1", "n2").service("s", all(announced([]string{"n1"}, "n2"), func(s *ServiceFacts) { s.Rotation.Broken = "no credentials" }), "n1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"HookUnavailable:Unproven[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"a label without a witness, accepted for good": {
			newWorld("n1", "n2").service("s", all(announced([]string{"n1"}, "n2"), func(s *ServiceFacts) { s.Rotation.Provable, s.Rotation.Settle = false, &settle }), "n1", "n2"), nil, false,
			Withdraw,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"no lever, so a settle time accepts nothing": {
			newWorld("n1", "n2").service("s", func(s *ServiceFacts) { s.Rotation.Settle = &settle }, "n1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"a documented impossibility": {
			newWorld("n1", "n2").service("s", all(announced([]string{"n1"}, "n2"), func(s *ServiceFacts) { s.Rotation.Unsupported = "no" }), "n1", "n2"), nil, false,
			Unsafe,
			Count{2, 1},
			[]string{"UnsupportedBalancer:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"two hooks": {
			newWorld("n1", "n2").service("s", all(announced([]string{"n1"}, "n2"), func(s *ServiceFacts) { s.Rotation.Conflict = []string{"x", "y"} }), "n1", "n2"), nil, false,
			Unsafe,
			Count{2, 1},
			[]string{"HookConflict:Block[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"grace outlives the health check": {
			newWorld("n1", "n2").pod("n1", "p1", sleeps(28, 60)).service("s", checked, "n1:RS=p1", "n2"), nil, false,
			Withdraw,
			Count{2, 1},
			[]string{"LosesLocalEndpoint:Info[n1]"},
		},
		"grace is one second short": {
			newWorld("n1", "n2").pod("n1", "p1", sleeps(27, 60)).service("s", checked, "n1:RS=p1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "GraceTooShort:Warn[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"preStop is cut off by the grace": {
			newWorld("n1", "n2").pod("n1", "p1", sleeps(60, 27)).service("s", checked, "n1:RS=p1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "GraceTooShort:Warn[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"one of two pods serves long enough": {
			newWorld("n1", "n2").pod("n1", "p1", sleeps(0, 60)).pod("n1", "p2", sleeps(40, 60)).service("s", checked, "n1:RS=p1", "n1:RS=p2", "n2"), nil, false,
			Withdraw,
			Count{3, 1},
			[]string{"LosesLocalEndpoint:Info[n1]"},
		},
		"grace cannot help where terminating pods stay published": {
			newWorld("n1", "n2").pod("n1", "p1", sleeps(600, 900)).service("s", all(checked, func(s *ServiceFacts) { s.PublishNotReady = true }), "n1:RS=p1", "n2"), nil, false,
			Unproven,
			Count{2, 1},
			[]string{"RotationUnproven:Unproven[n1]", "GraceIneffective:Warn[n1]", "LosesLocalEndpoint:Info[n1]"},
		},
		"an internal policy only warns": {
			newWorld("n1", "n2").pod("n1", "p1").service("s", func(s *ServiceFacts) { s.External, s.Internal = false, true }, "n1:RS=p1"), nil, false,
			Safe,
			Count{1, 0},
			[]string{"InternalLosesLocal:Warn[n1]"},
		},
		"an endpoint without a pod goes with the node": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n2"), nil, false,
			Withdraw,
			Count{2, 1},
			[]string{"LosesLocalEndpoint:Info[n1]"},
		},
		"an endpoint without a pod stays where the node stays up": {
			newWorld("n1", "n2").service("s", announced([]string{"n1"}, "n2"), "n1", "n2"), nil, true,
			Safe,
			Count{2, 2},
			[]string{},
		},
		"an endpoint that names no node": {
			newWorld("n1", "n2").service("s", nil, ":RS", "n2"), nil, false,
			Safe,
			Count{1, 1},
			[]string{"UnknownLocality:Warn"},
		},
		"an endpoint that names no node but a pod": {
			newWorld("n1").service("s", nil, ":RS=p1", "n1"), nil, false,
			Unsafe,
			Count{1, 0},
			[]string{"LastEndpoint:Block[n1]", "NeverLocal:Warn", "LosesLocalEndpoint:Info[n1]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := tc.nodes
			if nodes == nil {
				nodes = []string{"n1"}
			}
			// what goes with the node is a finding of its own, with its own test
			plan := Plan(tc.world, Request{Nodes: nodes, Run: "me", StayUp: tc.stayUp, Flags: Flags{GracePeriod: -1}})
			if tc.verdict == "" {
				if len(plan.Services) != 0 {
					t.Fatalf("services %v, want none", plan.Services)
				}
				return
			}
			if len(plan.Services) != 1 {
				t.Fatalf("%d services in the plan, want 1", len(plan.Services))
			}
			got := plan.Services[0]
			var findings []Finding
			for _, f := range got.Findings {
				if f.Code != GoesWithNode {
					findings = append(findings, f)
				}
			}
			if got.Verdict != tc.verdict || got.Endpoints != tc.count {
				t.Errorf("verdict %s, endpoints %v; want %s, %v", got.Verdict, got.Endpoints, tc.verdict, tc.count)
			}
			if d := cmp.Diff(tc.want, codes(findings)); d != "" {
				t.Errorf("findings (-want +got):\n%s", d)
			}
		})
	}
}

func TestGoesWithNode(t *testing.T) {
	owned := func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", Controller: &yes}}
	}
	w := newWorld("n1", "n2").pod("n1", "p1", owned).service("s", announced([]string{"n1"}, "n2"), "n1:RS=p1", "n2")
	w.daemonSets[Key{"a", "d"}] = true
	plan := w.plan(Flags{IgnoreDaemonSets: true}, "n1")
	want := []string{"GoesWithNode:Warn[n1]", "LosesLocalEndpoint:Info[n1]"}
	if d := cmp.Diff(want, codes(plan.Services[0].Findings)); d != "" || plan.Verdict != Withdraw {
		t.Errorf("verdict %s, findings (-want +got):\n%s", plan.Verdict, d)
	}
	if len(plan.Pods[0].After) != 0 {
		t.Errorf("a pod that is not evicted waits for %v", plan.Pods[0].After)
	}
}

func TestPortsDiffer(t *testing.T) {
	two := func(s *ServiceFacts) {
		announced([]string{"n1"}, "n2")(s)
		s.Ports = append(s.Ports, Port{Name: "admin", Protocol: corev1.ProtocolTCP, Family: corev1.IPv4Protocol, Endpoints: []Endpoint{parseEndpoint("n1", 8)}})
	}
	plan := newWorld("n1", "n2").service("s", two, "n1", "n2").plan(Flags{}, "n1")
	got := plan.Services[0]
	if got.Verdict != Unsafe || len(got.Nodes[0].Ports) != 0 {
		t.Errorf("verdict %s, row %+v: port admin has its only endpoint on n1", got.Verdict, got.Nodes[0])
	}
	plan = newWorld("n1", "n2").service("s", two, "n1", "n2").plan(Flags{}, "n2")
	got = plan.Services[0]
	if d := cmp.Diff([]NodeRow{{Name: "n2", Before: StateServing, After: StateEmpty, InRotation: No}}, got.Nodes); d != "" && got.Verdict != Safe {
		t.Errorf("rows (-want +got):\n%s", d)
	}
}

func TestFamiliesDiffer(t *testing.T) {
	dual := func(s *ServiceFacts) {
		announced([]string{"n1"}, "n2")(s)
		six := Port{Name: "http", Protocol: corev1.ProtocolTCP, Family: corev1.IPv6Protocol, Endpoints: []Endpoint{parseEndpoint("n2", 8)}}
		s.Ports = append(s.Ports, six)
	}
	got := newWorld("n1", "n2").service("s", dual, "n1", "n2").plan(Flags{}, "n2").Services[0]
	if got.Verdict != Unsafe {
		t.Errorf("verdict %s, want Unsafe: IPv6 has its only endpoint on n2", got.Verdict)
	}
	if f := got.Findings[0]; f.Code != LastEndpoint {
		t.Errorf("first finding %s, want LastEndpoint", f.Code)
	}
}

func TestSharedAddress(t *testing.T) {
	shares := func(with string) func(*ServiceFacts) {
		return all(announced([]string{"n1"}, "n2", "n3"), func(s *ServiceFacts) { s.SharedWith = []Key{{"a", with}} })
	}
	w := newWorld("n1", "n2", "n3").service("s", shares("t"), "n1", "n2").service("t", shares("s"), "n1", "n3")
	plan := w.plan(Flags{}, "n1")
	for _, s := range plan.Services {
		if s.Verdict != Unsafe || s.Findings[0].Code != NoEligibleNode {
			t.Errorf("%s: verdict %s, %v; no node has endpoints of both Services of the address", s.Name, s.Verdict, codes(s.Findings))
		}
	}
	w.service("t", shares("s"), "n1", "n2")
	if plan := w.plan(Flags{}, "n1"); plan.Verdict != Withdraw {
		t.Errorf("verdict %s, want Withdraw: n2 has both", plan.Verdict)
	}
}
