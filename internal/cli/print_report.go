package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// reportView is the end of a run with what its text needs besides.
type reportView struct {
	result *drain.Result
	nodes  []string
	typed  typed
	reason string // the text of the error, explained
}

// reportText is what a run that was not refused leaves on stderr when it ends: the state of each node, what is still
// there and why, and the commands that go on and that undo.
func reportText(v *reportView) string {
	if v.result.Outcome == drain.Done {
		return v.done()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "error: %s\n", v.reason)
	touched := false
	var state strings.Builder
	for i := range v.result.Nodes {
		n := &v.result.Nodes[i]
		if n.Changed() {
			touched = true
			v.node(&state, n)
		}
	}
	if !touched {
		return b.String()
	}
	b.WriteString("\n" + state.String() + "\n")
	v.commands(&b)
	return b.String()
}

func (v *reportView) done() string {
	var b strings.Builder
	for _, n := range v.result.Nodes {
		if n.Deleted {
			fmt.Fprintf(&b, "node/%s was deleted meanwhile; nothing of it is left to undo\n", n.Name)
		}
	}
	if v.result.Report != nil {
		if words := atYourWord(&v.result.Report.DrainPlan); words != "" {
			writeField(&b, "Note", words)
		}
	}
	if words := v.covered(); words != "" {
		writeField(&b, "Covered", words)
	}
	back := v.claimed()
	if len(back) > 0 {
		only := v.typed.only(whereFlags...)
		writeField(&b, "Back", only.command("uncordon", back...)+"   (kubectl uncordon leaves it out of the load balancers)")
	}
	return b.String()
}

// covered names the Services that were served from the nodes and how many endpoints each has elsewhere now.
func (v *reportView) covered() string {
	left := map[guard.Key]int{}
	for i := range v.result.Nodes {
		maps.Copy(left, v.result.Nodes[i].Covered) // a later node was verified later
	}
	var words []string
	for _, key := range slices.SortedFunc(maps.Keys(left), guard.Key.Compare) {
		words = append(words, key.String()+" "+count(left[key], "endpoint"))
	}
	return listed(words, 6)
}

// claimed are the nodes that only uncordon gives back in full.
func (v *reportView) claimed() []string {
	var out []string
	for _, n := range v.result.Nodes {
		if n.Claimed && !n.Deleted {
			out = append(out, n.Name)
		}
	}
	return out
}

// atYourWord names what was accepted in place of a proof.
func atYourWord(p *guard.DrainPlan) string {
	var names []string
	for i := range p.Services {
		s := &p.Services[i]
		if slices.ContainsFunc(s.Findings, func(f guard.Finding) bool {
			return f.Accepted && f.Severity == guard.SeverityUnproven
		}) {
			names = append(names, s.Key().String())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "not proven, at your word: " + listed(names, 6)
}

// node says what stands on a node.
func (v *reportView) node(b *strings.Builder, n *drain.NodeState) {
	var parts []string
	say := func(is bool, words string) {
		if is {
			parts = append(parts, words)
		}
	}
	say(n.Deleted, "deleted")
	say(n.Cordoned && !n.Labelled, "cordoned")
	say(n.Cordoned && n.Labelled, "cordoned and labelled")
	say(!n.Cordoned && n.Labelled, "labelled")
	say(!n.Cordoned && !n.Labelled && !n.Deleted, "schedulable")
	say(len(n.OutOf) > 0, "out of "+strings.Join(n.OutOf, ", "))
	text := strings.Join(parts, ", ")
	if n.PodsTotal > 0 {
		text += fmt.Sprintf("; %d of %s gone", n.PodsGone, count(n.PodsTotal, "pod"))
	}
	writeField(b, "node/"+n.Name, text)
	if len(n.Remaining) > 0 {
		writeField(b, "still here", remaining(n.Remaining))
	}
	for _, blocked := range n.Blocked {
		words := count(len(blocked.Pods), "pod") + " held by " + blocked.By + ": " + listed(blocked.Pods, 3)
		for _, detail := range blocked.Details[:min(len(blocked.Details), 3)] {
			words += "; " + detail
		}
		if more := len(blocked.Details) - 3; more > 0 {
			words += fmt.Sprintf("; and %s more", count(more, "answer"))
		}
		writeField(b, "blocked", words)
	}
}

// remaining names the pods that are still there, terminating ones apart.
func remaining(pods []guard.PodPlan) string {
	var serving, ending []string
	for i := range pods {
		if pods[i].Waiting {
			ending = append(ending, pods[i].Key().String())
		} else {
			serving = append(serving, pods[i].Key().String())
		}
	}
	var parts []string
	if len(serving) > 0 {
		parts = append(parts, listed(serving, 3))
	}
	if len(ending) > 0 {
		parts = append(parts, fmt.Sprintf("%d terminating (%s)", len(ending), listed(ending, 2)))
	}
	return strings.Join(parts, "; ")
}

// commands are what to type next: the same again, with more time or without proof where that failed, and the way back.
func (v *reportView) commands(b *strings.Builder) {
	again := v.typed.command("", v.nodes...)
	writeField(b, "continue", again)
	if v.result.Outcome == drain.HookFailed {
		writeField(b, "wait longer", v.typed.longer("hook-timeout", 5*time.Minute).command("", v.nodes...))
		if flags := v.unproven(); len(flags) > 0 {
			writeField(b, "no proof", v.typed.with(flags...).command("", v.nodes...))
		}
	}
	if back := v.claimed(); len(back) > 0 {
		only := v.typed.only(whereFlags...)
		writeField(b, "undo", only.command("uncordon", back...))
	}
}

// unproven are the flags that accept the Services whose proof failed.
func (v *reportView) unproven() []string {
	if v.result.Report == nil {
		return nil
	}
	proven := map[string]bool{}
	failed := map[string]bool{}
	for _, s := range v.result.Report.Steps {
		if s.Service == "" || s.Name != "prove" && s.Name != "withdraw" {
			continue
		}
		if s.Outcome == "done" {
			proven[s.Service] = s.Name == "prove" || proven[s.Service]
			continue
		}
		failed[s.Service] = true
	}
	var out []string
	for _, svc := range slices.Sorted(keys(failed)) {
		if !proven[svc] {
			out = append(out, "--accept-unproven="+svc)
		}
	}
	return out
}

// writeField writes a word and what is said about it; commands are never broken into lines.
func writeField(b *strings.Builder, name, text string) {
	fmt.Fprintf(b, "%-12s %s\n", name, text)
}
