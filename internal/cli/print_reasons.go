package cli

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

func keys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// Columns of a block: the label, then what is about it.
const (
	labelWidth = 10
	verbWidth  = 9
)

// blocks writes the reasons, grouped by cause, each with what mends it and the flag that accepts it.
func (v *planView) blocks(rs []reason) string {
	var b strings.Builder
	var last cause
	for _, g := range grouped(rs) {
		label := string(g.cause)
		if g.cause == last {
			label = ""
		}
		last = g.cause
		v.writeGroup(&b, label, g)
	}
	return b.String()
}

func (v *planView) writeGroup(b *strings.Builder, label string, g group) {
	limit := most
	if v.wide {
		limit = 0
	}
	writeLabelled(b, label, groupText(g, limit))
	first := &g.reasons[0]
	if len(g.reasons) == 1 || sameAdvice(g.reasons) {
		if first.Advice != "" && g.code != guard.DaemonSetPod {
			writeVerb(b, adviceVerb(g.cause), first.Advice)
		}
	}
	if g.cause == causeWarn {
		return
	}
	verb := map[cause]string{causeUnsafe: "force", causeBudget: "or"}[g.cause]
	if verb == "" {
		verb = "accept"
	}
	if flags := acceptFlags(g.reasons); len(flags) > 0 {
		writeVerb(b, verb, strings.Join(flags, " ")+consequence(g))
	}
}

// adviceVerb says what an advice is: a repair, or what to know before a flag is given.
func adviceVerb(c cause) string {
	if c == causeFlag || c == causeWarn {
		return "note"
	}
	return "fix"
}

// consequence is said beside a flag that lets something break.
func consequence(g group) string {
	switch {
	case g.cause == causeUnsafe && g.code == guard.LastEndpoint:
		return ": every request fails until an endpoint is back"
	case g.cause == causeBudget:
		return ", if an operator moves the pod once the node is cordoned"
	}
	return ""
}

func sameAdvice(rs []reason) bool {
	return !slices.ContainsFunc(rs, func(r reason) bool { return r.Advice != rs[0].Advice })
}

// acceptFlags merges the flags of several findings: lists are joined, equal flags are one.
func acceptFlags(rs []reason) []string {
	var t typed
	for _, r := range rs {
		if r.Accept != "" {
			t = t.with(r.Accept)
		}
	}
	return (typed{}).with(globbed(t.values())...).words()
}

// groupText says one reason in full, or many by their number, their kind and their names.
func groupText(g group, limit int) string {
	if g.cause == causeFlag {
		return flagText(g, limit)
	}
	if len(g.reasons) == 1 {
		r := &g.reasons[0]
		return strings.TrimPrefix(r.subject+r.elsewhere()+": ", ": ") + r.Message
	}
	noun := "pod"
	switch {
	case g.reasons[0].Budget != "":
		noun = "budget"
	case g.reasons[0].Pod == "" && g.reasons[0].service != nil:
		noun = "Service"
	case g.reasons[0].Pod == "":
		noun = "finding"
	}
	return fmt.Sprintf("%s, %s: %s", count(len(g.reasons), noun), codeWords(g.code), byNamespace(g.reasons, limit))
}

// flagText names the pods that a missing flag is about, by their owner where the name was generated.
func flagText(g group, limit int) string {
	kind := map[guard.Code]string{
		guard.DaemonSetPod: "DaemonSet pod", guard.LocalStorage: "pod with emptyDir data", guard.UnmanagedPod: "pod without a controller",
	}[g.code]
	n := map[string]int{}
	for _, r := range g.reasons {
		name := r.Pod
		if g.code == guard.DaemonSetPod {
			name = r.Pod[strings.Index(r.Pod, "/")+1:]
			if owner, ok := ownerOf(r.Message); ok {
				name = owner
			}
		}
		n[name]++
	}
	var names []string
	for _, name := range slices.Sorted(keys(n)) {
		if n[name] > 1 {
			name = fmt.Sprintf("%s (%d)", name, n[name])
		}
		names = append(names, name)
	}
	if limit > 0 {
		limit = 8
	}
	if rest, ok := strings.CutPrefix(kind, "pod"); ok {
		return fmt.Sprintf("%s%s: %s", count(len(g.reasons), "pod"), rest, listed(names, limit))
	}
	noun, _, _ := strings.Cut(kind, " pod")
	return fmt.Sprintf("%s: %s", count(len(g.reasons), noun+" pod"), listed(names, limit))
}

// ownerOf finds the DaemonSet that a finding names.
func ownerOf(message string) (string, bool) {
	_, rest, ok := strings.Cut(message, "managed by DaemonSet ")
	if !ok {
		return "", false
	}
	name, _, _ := strings.Cut(rest, ",")
	return name, true
}

// byNamespace shortens many subjects to shop/* (15); few of a namespace are named.
func byNamespace(rs []reason, limit int) string {
	names := map[string][]string{}
	for _, r := range rs {
		ns, _, _ := strings.Cut(r.subject, "/")
		names[ns] = append(names[ns], r.subject)
	}
	var out []string
	for _, ns := range slices.Sorted(keys(names)) {
		if limit > 0 && len(names[ns]) > limit {
			out = append(out, fmt.Sprintf("%s/* (%d)", ns, len(names[ns])))
			continue
		}
		out = append(out, sorted(names[ns])...)
	}
	if limit > 0 {
		limit = 12
	}
	return listed(out, limit)
}

// codeWords is a code in words, for a line about many findings.
func codeWords(c guard.Code) string {
	words := map[guard.Code]string{
		guard.LastEndpoint:       "no endpoint would be left",
		guard.NoEligibleNode:     "endpoints left only where the balancer does not send",
		guard.RotationUnproven:   "nobody can prove that the node left rotation",
		guard.HookUnavailable:    "hook cannot work",
		guard.BudgetNever:        "never allow it",
		guard.BudgetMultiple:     "under more than one budget",
		guard.BudgetBroken:       "cannot be computed",
		guard.BudgetExhausted:    "do not allow it now, the drain waits",
		guard.BudgetHeld:         "held by an operator until the node is cordoned",
		guard.DoNotEvict:         "ask to be left alone",
		guard.ExistingBlackhole:  "drop traffic on other nodes already",
		guard.InternalLosesLocal: "internal clients on the node lose it",
		guard.GraceTooShort:      "pods end before the health check sees it",
		guard.GoesWithNode:       "have an endpoint that goes with the node",
	}
	if w := words[c]; w != "" {
		return w
	}
	return string(c)
}

func writeLabelled(b *strings.Builder, label, text string) {
	indent := strings.Repeat(" ", labelWidth)
	fmt.Fprintf(b, "%-*s%s\n", labelWidth, label, wrapped(text, indent))
}

func writeVerb(b *strings.Builder, verb, text string) {
	indent := strings.Repeat(" ", labelWidth+verbWidth)
	fmt.Fprintf(b, "%*s%-*s%s\n", labelWidth, "", verbWidth, verb, wrapped(text, indent))
}
