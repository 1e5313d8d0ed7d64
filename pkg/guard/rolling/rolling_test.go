package rolling

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/pkg/guard"
)

// plan is a drain of nodes after which Services have so many endpoints of three left.
func plan(nodes string, left map[string]int, mutate ...func(*guard.DrainPlan)) guard.DrainPlan {
	p := guard.DrainPlan{Nodes: strings.Fields(nodes), Verdict: guard.Withdraw}
	for name, after := range left {
		p.Services = append(p.Services, guard.ServicePlan{Namespace: "shop", Name: name, Endpoints: guard.Count{Before: 3, After: after}})
	}
	for _, m := range mutate {
		m(&p)
	}
	return p
}

func homeless(p *guard.DrainPlan) {
	p.Services[0].Replacements = &guard.Replacements{Pods: []guard.Replacement{{Pod: "shop/web-1", Reason: "0 of 5 nodes"}}}
}

func TestOrder(t *testing.T) {
	for name, test := range map[string]struct {
		plans  []guard.DrainPlan
		want   string
		reason string
	}{
		"by name": {
			[]guard.DrainPlan{plan("node-10", nil), plan("node-9", nil), plan("node-1", nil)},
			"node-1 node-9 node-10",
			"what is equal goes as people count",
		},
		"coverage": {
			[]guard.DrainPlan{
				plan("last", map[string]int{"web": 0}), plan("thin", map[string]int{"web": 1, "api": 2}),
				plan("two", map[string]int{"web": 2, "api": 2}), plan("one", map[string]int{"web": 2}), plan("none", map[string]int{"web": 3}),
			},
			"none one two thin last", "what loses least goes first, and a last endpoint last",
		},
		"homes": {
			[]guard.DrainPlan{
				plan("a-fits-nowhere", map[string]int{"web": 2}, homeless), plan("b-fits", map[string]int{"web": 1}),
				plan("z-last", map[string]int{"web": 0}),
			},
			"b-fits a-fits-nowhere z-last", "pods that find another home go before those that find none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // whatever the order they come in
				slices.Reverse(test.plans)
				Order(test.plans)
				var got []string
				for _, p := range test.plans {
					got = append(got, p.Nodes...)
				}
				if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
					t.Errorf("%s (-want +got):\n%s", test.reason, diff)
				}
			}
		})
	}
}

func TestAgainst(t *testing.T) {
	finding := func(f guard.Finding) func(*guard.DrainPlan) {
		return func(p *guard.DrainPlan) { p.Services[0].Findings = append(p.Services[0].Findings, f) }
	}
	for name, test := range map[string]struct {
		plan guard.DrainPlan
		want string
	}{
		"covered": {plan("a b", map[string]int{"web": 1}), ""},
		"last endpoints, whatever is forced": {
			plan("a b", map[string]int{"web": 0}, finding(guard.Finding{Code: guard.LastEndpoint, Severity: guard.Block, Accepted: true})),
			"shop/web would have no endpoint left",
		},
		"left where the balancer does not send": {
			plan("a b", map[string]int{"web": 1}, finding(guard.Finding{Code: guard.NoEligibleNode, Severity: guard.Block, Accepted: true, Message: "why"})),
			"shop/web: why",
		},
		"a zone": {
			plan("a b", map[string]int{"web": 1}, finding(guard.Finding{Code: guard.ZoneLosesLastBackend, Nodes: []string{"a", "b"}, Message: "zone x"})),
			"shop/web: zone x",
		},
		"a zone of one node": {
			plan("a b", map[string]int{"web": 1}, finding(guard.Finding{Code: guard.ZoneLosesLastBackend, Nodes: []string{"a"}})), "",
		},
		"no way in": {
			plan("a b", nil, func(p *guard.DrainPlan) { p.Withdraw = []guard.Entry{{Namespace: "shop", Name: "front"}} }),
			"shop/front would have no node left as a way in",
		},
		"refused": {plan("a b", nil, func(p *guard.DrainPlan) { p.Verdict = guard.Unproven }), "a drain of both is refused"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Against(&test.plan); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestTurns: no turn has more nodes than may be away, every node has one, and those that exclude each other have different
// ones.
func TestTurns(t *testing.T) {
	exclude := func(nodes []string) bool { return !slices.Contains(nodes, "b") || !slices.Contains(nodes, "a") }
	got := Turns([]string{"a", "b", "c", "d", "e"}, 2, exclude)
	if diff := cmp.Diff([][]string{{"a", "c"}, {"b", "d"}, {"e"}}, got); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
}
