package guard

import "testing"

// Old nodes are drained one after the other, the new ones have no pod yet. A balancer that keeps cordoned nodes has two of
// them left; one that drops them would be left without a target, and the cordon itself would do it.
func TestCordonedNodesAndTheirBalancer(t *testing.T) {
	drops := func(cordoned ...string) func(*ServiceFacts) {
		return pooled(func(r *Rotation) {
			r.Seats = map[string]Seat{}
			for _, n := range cordoned {
				r.Seats[n] = Seat{In: No, Why: "cordoned"}
			}
		})
	}
	old := []string{"old1", "old2", "old3"}
	for name, test := range map[string]struct {
		balancer func(*ServiceFacts)
		cordoned []string
		verdict  Verdict
		left     int
		code     Code // of a finding, "" for none that blocks
	}{
		"keeps cordoned nodes":          {pooled(), []string{"old2", "old3"}, Withdraw, 2, ""},
		"drops them":                    {drops("old2", "old3"), []string{"old2", "old3"}, Unsafe, 0, NoEligibleNode},
		"drops them, and none is":       {drops(), nil, Withdraw, 2, ""},
		"drops them, and one of two is": {drops("old3"), []string{"old3"}, Withdraw, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("old1", "old2", "old3", "new1", "new2", "new3")
			for _, n := range test.cordoned {
				w.nodes[n].Cordoned = true
			}
			plan := w.service("s", test.balancer, old...).plan(Flags{}, "old1")
			s := plan.Services[0]
			if s.Verdict != test.verdict || s.Endpoints.After != test.left {
				t.Errorf("%s with %d left, want %s with %d", s.Verdict, s.Endpoints.After, test.verdict, test.left)
			}
			var block Code
			for i := range s.Findings {
				if s.Findings[i].Severity == Block {
					block = s.Findings[i].Code
				}
			}
			if block != test.code {
				t.Errorf("blocked by %q, want %q", block, test.code)
			}
		})
	}
}
