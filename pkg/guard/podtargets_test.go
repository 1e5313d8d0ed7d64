package guard

import (
	"testing"
	"time"
)

// A balancer that sends to pods: no node is in rotation, so nothing is withdrawn; each pod has to serve until the balancer
// has let go of it, and the last endpoint is the last whatever the balancer sends to.
func TestPodTargets(t *testing.T) {
	pods := func(s *ServiceFacts) {
		s.Rotation = Rotation{
			Hook: "test", Removal: RemovalNone, Follows: true, Rest: Seat{In: No, Eligible: true},
			PodTargets: &HealthCheck{Interval: 120 * time.Second, Unhealthy: 1, Source: "two minutes"},
		}
	}
	for name, test := range map[string]struct {
		world   *world
		verdict Verdict
		want    []string
	}{
		"they serve long enough": {newWorld("n1", "n2").pod("n1", "p1", sleeps(125, 150)).service("s", pods, "n1:RS=p1", "n2"), Safe, nil},
		"they do not":            {newWorld("n1", "n2").pod("n1", "p1", sleeps(30, 60)).service("s", pods, "n1:RS=p1", "n2"), Safe, []string{"GraceTooShort:Warn[n1]"}},
		"one of two does not": {
			newWorld("n1", "n2").pod("n1", "p1", sleeps(125, 150)).pod("n1", "p2", sleeps(5, 150)).service("s", pods, "n1:RS=p1", "n1:RS=p2", "n2"),
			Safe,
			[]string{"GraceTooShort:Warn[n1]"},
		},
		"the last endpoint": {newWorld("n1", "n2").pod("n1", "p1", sleeps(125, 150)).service("s", pods, "n1:RS=p1"), Unsafe, []string{"LastEndpoint:Block[n1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Plan(test.world, Request{Nodes: []string{"n1"}, Flags: Flags{GracePeriod: -1}})
			if len(plan.Services) != 1 {
				t.Fatalf("%d services", len(plan.Services))
			}
			s := plan.Services[0]
			got := codes(s.Findings)
			if s.Verdict != test.verdict || len(got) != len(test.want) {
				t.Fatalf("%s %v, want %s %v", s.Verdict, got, test.verdict, test.want)
			}
			for i := range got {
				if got[i] != test.want[i] {
					t.Errorf("finding %s, want %s", got[i], test.want[i])
				}
			}
		})
	}
}
