package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// eachRow is nodes that one line can say.
type eachRow struct {
	nodes          []string
	verdict        guard.Verdict
	services, pods [2]int // least and most
	why            string
}

// eachText is what `plan --each` prints: how many nodes can be drained, then a line for nodes with equal reasons.
func eachText(plans []guard.DrainPlan, wide bool) string {
	var b strings.Builder
	can, unproven, unsafe := 0, 0, 0
	for i := range plans {
		switch plans[i].Verdict {
		case guard.Unsafe:
			unsafe++
		case guard.Unproven:
			unproven++
		default:
			can++
		}
	}
	fmt.Fprintf(&b, "%s, each alone: %d can be drained", count(len(plans), "node"), can)
	if unproven > 0 {
		fmt.Fprintf(&b, ", %d unproven", unproven)
	}
	if unsafe > 0 {
		fmt.Fprintf(&b, ", %d unsafe", unsafe)
	}
	b.WriteString("\n\n")
	t := table{head: []string{"NODE", "VERDICT", "SERVICES", "PODS", "WHY"}}
	for _, r := range eachRows(plans, wide) {
		limit := 4
		if wide {
			limit = 0
		}
		t.row(listed(ranges(r.nodes), limit), string(r.verdict), between(r.services), between(r.pods), r.why)
	}
	b.WriteString(t.String())
	return b.String()
}

// eachRows groups plans by verdict and reasons, worst first.
func eachRows(plans []guard.DrainPlan, wide bool) []eachRow {
	var rows []eachRow
	for i := range plans {
		p := &plans[i]
		r := eachRow{
			nodes: p.Nodes, verdict: p.Verdict, why: whyShort(p),
			services: [2]int{len(p.Services), len(p.Services)}, pods: [2]int{len(p.Pods), len(p.Pods)},
		}
		at := slices.IndexFunc(rows, func(o eachRow) bool { return !wide && o.verdict == r.verdict && o.why == r.why })
		if at < 0 {
			rows = append(rows, r)
			continue
		}
		o := &rows[at]
		o.nodes = append(slices.Clone(o.nodes), r.nodes...)
		o.services = widen(o.services, r.services)
		o.pods = widen(o.pods, r.pods)
	}
	slices.SortStableFunc(rows, func(a, b eachRow) int {
		switch {
		case a.verdict == b.verdict:
			return cmp.Compare(a.why, b.why)
		case a.verdict.Worse(b.verdict) == a.verdict:
			return -1
		}
		return 1
	})
	return rows
}

func widen(a, b [2]int) [2]int { return [2]int{min(a[0], b[0]), max(a[1], b[1])} }

func between(n [2]int) string {
	if n[0] == n[1] {
		return fmt.Sprint(n[0])
	}
	return fmt.Sprintf("%d-%d", n[0], n[1])
}

// whyShort names what stands against a plan in a few words, gravest first.
func whyShort(p *guard.DrainPlan) string {
	var parts []string
	seen := map[string]bool{}
	rs := reasons(p)
	for _, g := range grouped(rs) {
		if g.cause == causeWarn && (g.code != guard.ReplacementUnschedulable || len(parts) > 0) {
			continue
		}
		var words string
		switch {
		case g.cause == causeFlag:
			words = g.reasons[0].Accept
		case len(g.reasons) > 1:
			words = fmt.Sprintf("%d %s", len(g.reasons), codeWords(g.code))
		default:
			words = g.reasons[0].subject + " " + shortCode(g.code)
		}
		if !seen[words] {
			seen[words] = true
			parts = append(parts, words)
		}
	}
	if len(parts) > most {
		parts = append(parts[:most], fmt.Sprintf("+%d", len(parts)-most))
	}
	return strings.Join(parts, "; ")
}

func shortCode(c guard.Code) string {
	words := map[guard.Code]string{
		guard.LastEndpoint:     "last endpoint",
		guard.NoEligibleNode:   "no eligible node",
		guard.RotationUnproven: "nobody can prove it",
		guard.HookUnavailable:  "hook cannot work",
		guard.BudgetNever:      "budget never allows it",
		guard.BudgetMultiple:   "two budgets",
		guard.BudgetBroken:     "budget broken",
		guard.DoNotEvict:       "asks to be left alone",

		guard.ReplacementUnschedulable: "replacement fits nowhere",
	}
	if w := words[c]; w != "" {
		return w
	}
	return string(c)
}
