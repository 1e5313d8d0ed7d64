package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// scaleView is the plan of a scaling with what its text needs besides.
type scaleView struct {
	plan *guard.ScalePlan
	name string // how the program was called: "safedrain", "kubectl safedrain"
	wide bool
}

// victimsShown is the number of pods in a table that is not wide.
const victimsShown = 12

// text is what `safedrain plan --scale` prints: the answer, the Services, the pods that go, the reasons, the floor, what to
// type.
func (v *scaleView) text() string {
	var b strings.Builder
	b.WriteString(v.answer() + "\n")
	for _, part := range []string{v.services(), v.victims(), v.reasons(), v.facts(), v.next()} {
		if part != "" {
			b.WriteString("\n" + part)
		}
	}
	return b.String()
}

func (v *scaleView) subject() string {
	return strings.ToLower(v.plan.Workload.Kind) + "/" + v.plan.Workload.Name
}

// answer is the first line.
func (v *scaleView) answer() string {
	n := &v.plan.Workload.Replicas
	change := fmt.Sprintf("%s from %d to %d", v.subject(), n.Before, n.After)
	taken := v.plan.Workload.Pods.Before - v.plan.Workload.Pods.After
	switch {
	case v.plan.Refused():
		return change + " would be refused: " + strings.Join(v.against(), ", ")
	case taken <= 0:
		return change + " takes no pod"
	case len(v.emptied(guard.Warn)) > 0:
		return fmt.Sprintf("%s takes %s: %s", change, count(taken, "pod"), strings.Join(v.emptied(guard.Warn), ", "))
	}
	return fmt.Sprintf("%s takes %s: no node that gets traffic loses its last endpoint", change, count(taken, "pod"))
}

// against says in a few words what stands against the scaling.
func (v *scaleView) against() []string {
	var out []string
	if v.plan.Finding(guard.BelowFloor) != nil {
		out = append(out, fmt.Sprintf("its floor is %d", v.plan.Floor.Value))
	}
	return append(out, v.emptied(guard.Block)...)
}

// emptied says which nodes lose their last endpoint by findings of a severity.
func (v *scaleView) emptied(severity guard.Severity) []string {
	var out []string
	for i := range v.plan.Services {
		s := &v.plan.Services[i]
		for _, f := range s.Findings {
			if f.Code != guard.ScaleEmptiesNode || f.Severity != severity {
				continue
			}
			will, may := v.lost(s)
			switch {
			case len(will) > 0:
				out = append(out, fmt.Sprintf("%s loses its last endpoint on %s", s.Key(), andMore(will)))
			default:
				out = append(out, fmt.Sprintf("%s may lose its last endpoint on %s", s.Key(), andMore(may)))
			}
		}
	}
	return out
}

// lost lists the nodes on which a Service loses its last endpoint, and those on which it may.
func (v *scaleView) lost(s *guard.ServicePlan) (will, may []string) {
	for _, r := range s.Nodes {
		if r.May {
			may = append(may, r.Name)
		} else {
			will = append(will, r.Name)
		}
	}
	return will, may
}

// services is the table of the Local Services behind which the workload stands.
func (v *scaleView) services() string {
	t := table{head: []string{"SERVICE", "BALANCER", "LEFT", "EMPTIES", "VERDICT"}}
	limit := 6
	if v.wide {
		limit = 0
	}
	for i := range v.plan.Services {
		s := &v.plan.Services[i]
		will, may := v.lost(s)
		var parts []string
		if len(will) > 0 {
			parts = append(parts, listed(ranges(will), limit))
		}
		if len(may) > 0 {
			parts = append(parts, "maybe "+listed(ranges(may), limit))
		}
		if len(parts) == 0 {
			parts = []string{"-"}
		}
		left := fmt.Sprintf("%d/%d", s.Endpoints.After, s.Endpoints.Before)
		t.row(s.Key().String(), s.Balancer.Hook, left, strings.Join(parts, ", "), string(s.Verdict))
	}
	if len(t.rows) == 0 {
		return ""
	}
	return t.String()
}

// victims is the table of the pods that go, in the order in which they go, and of those that may.
func (v *scaleView) victims() string {
	t := table{head: []string{"POD", "NODE", "GOES", "WHY"}}
	left := 0
	for _, p := range v.plan.Victims {
		if !v.wide && len(t.rows) >= victimsShown {
			left++
			continue
		}
		node := p.Node
		if node == "" {
			node = "-"
		}
		t.row(p.Name, node, strings.ToLower(string(p.Goes)), p.Why)
	}
	switch {
	case len(t.rows) == 0:
		return ""
	case left > 0:
		return t.String() + fmt.Sprintf("+%d (-o wide)\n", left)
	}
	return t.String()
}

// scaleLabels are the labels of blocks.
var scaleLabels = map[guard.Code]string{guard.BelowFloor: "FLOOR", guard.ScaleEmptiesNode: "EMPTIES"}

// reasons writes the findings that block or warn, each with what mends it.
func (v *scaleView) reasons() string {
	var b strings.Builder
	write := func(subject string, fs []guard.Finding) {
		for _, f := range fs {
			if !f.Severity.AtLeast(guard.Warn) {
				continue
			}
			label, verb := "WARN", "note"
			if f.Severity == guard.Block {
				label, verb = scaleLabels[f.Code], "fix"
			}
			writeLabelled(&b, label, subject+f.Message)
			if f.Advice != "" {
				writeVerb(&b, verb, f.Advice)
			}
		}
	}
	blocks := func(f guard.Finding) bool { return f.Severity == guard.Block }
	for _, want := range []func(guard.Finding) bool{blocks, func(f guard.Finding) bool { return !blocks(f) }} {
		pick := func(fs []guard.Finding) []guard.Finding {
			return slices.DeleteFunc(slices.Clone(fs), func(f guard.Finding) bool { return !want(f) })
		}
		write("", pick(v.plan.Findings))
		for i := range v.plan.Services {
			s := &v.plan.Services[i]
			for _, f := range pick(s.Findings) {
				write(s.Key().String()+" on "+andMore(f.Nodes)+": ", []guard.Finding{f})
			}
		}
	}
	return b.String()
}

// facts says what the floor is, and which pods would have to stay.
func (v *scaleView) facts() string {
	var b strings.Builder
	limit := 8
	if v.wide {
		limit = 0
	}
	if f := &v.plan.Floor; f.Service != "" {
		text := fmt.Sprintf("%d: %s", f.Value, f.Source)
		if len(f.Nodes) > 0 {
			text += " (" + listed(ranges(f.Nodes), limit) + ")"
		}
		writeLabelled(&b, "Floor", text)
	}
	var keep []string
	for _, k := range v.plan.Keepers {
		keep = append(keep, k.Name+" on "+k.Node)
	}
	if len(keep) > 0 {
		writeLabelled(&b, "To keep", listed(keep, limit))
	}
	return b.String()
}

// next is what to type: the scaling, or one that the floor lets pass, or what keeps the right pods.
func (v *scaleView) next() string {
	w := &v.plan.Workload
	scale := func(n int) string {
		return fmt.Sprintf("kubectl -n %s scale %s --replicas=%d", quoted(w.Namespace), quoted(v.subject()), n)
	}
	clamped := int(v.plan.Clamped())
	switch {
	case !v.plan.Refused() && w.Replicas.After != w.Replicas.Before:
		return "Next:\n  " + scale(w.Replicas.After) + "\n"
	case v.plan.Finding(guard.BelowFloor) != nil && clamped < w.Replicas.Before:
		return fmt.Sprintf("Next: see what the floor lets pass\n  %s plan -n %s --scale=%s=%d\n", v.name, quoted(w.Namespace), quoted(v.subject()), clamped)
	case v.plan.Finding(guard.BelowFloor) != nil || len(v.plan.Keepers) == 0 || w.Kind == "StatefulSet":
		return ""
	}
	var names []string
	for _, k := range v.plan.Keepers {
		names = append(names, quoted(k.Name))
	}
	return fmt.Sprintf("Next: keep one pod on each node, then scale\n  kubectl -n %s annotate --overwrite pods %s controller.kubernetes.io/pod-deletion-cost=%s\n  %s\n",
		quoted(w.Namespace), strings.Join(names, " "), guard.KeeperCost, scale(w.Replicas.After))
}
