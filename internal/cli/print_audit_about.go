package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// about says of one Service what its findings mean.
func (v *auditView) about(s *guard.ServicePlan) string {
	var b strings.Builder
	title := s.Key().String()
	for i, p := range s.NodePorts {
		if i == 0 {
			title += ", NodePort"
		}
		title += fmt.Sprintf(" %d", p)
	}
	if drops(s) {
		title += ": " + andMore(emptyNames(s)) + " drop what arrives (no reset, no 502, no log)"
	}
	b.WriteString(wrapped(title, "  ") + "\n")
	var fixes []string
	placement := false
	for _, f := range s.Findings {
		if !f.Severity.AtLeast(guard.Warn) && !v.wide {
			continue
		}
		if f.Code != guard.ExistingBlackhole || !drops(s) || !f.Severity.AtLeast(guard.Warn) {
			writeAudit(&b, "why", v.nodesOf(&f)+f.Message+ports(f.Ports))
		}
		if f.Advice != "" && !slices.Contains(fixes, f.Advice) {
			fixes = append(fixes, f.Advice)
			placement = placement || f.Code != guard.ProbeDisagrees
		}
	}
	v.who(&b, s)
	if only := lastStand(s); only != "" {
		writeAudit(&b, "next", "a drain of "+only+" leaves nothing (LastEndpoint)")
	}
	for i, fix := range fixes {
		if len(fixes) > 1 {
			fix = fmt.Sprintf("%d  %s", i+1, fix)
		}
		writeAudit(&b, map[bool]string{true: "fix"}[i == 0], fix)
	}
	if v.mends(s) {
		writeAudit(&b, "patch", v.again().with("--fix").command("audit", s.Key().String()))
	}
	if placement {
		writeAudit(&b, "or", "policy Cluster, if nobody needs the client's IP")
	}
	return b.String()
}

// again are the flags by which the same is looked at.
func (v *auditView) again() typed {
	t := v.typed.only(whereFlags...)
	if v.source.Example != "" {
		t.flags = append(t.flags, typedFlag{name: "example", values: []string{v.source.Example}})
	}
	if len(v.source.Files) > 0 {
		t.flags = append(t.flags, typedFlag{name: "file", values: v.source.Files})
	}
	return t
}

// mends reports whether audit --fix has something to say of a Service.
func (v *auditView) mends(s *guard.ServicePlan) bool {
	return slices.ContainsFunc(v.report.Hazards, func(h guard.Hazard) bool { return h.Service == s.Key() })
}

func (v *auditView) nodesOf(f *guard.Finding) string {
	if len(f.Nodes) == 0 {
		return ""
	}
	limit := 6
	if v.wide {
		limit = 0
	}
	return listed(ranges(f.Nodes), limit) + ": "
}

// lastStand is the one node that has every endpoint of a Service, "" when several have some.
func lastStand(s *guard.ServicePlan) string {
	node := ""
	for _, r := range s.Nodes {
		if isEmpty(r) {
			continue
		}
		if node != "" {
			return ""
		}
		node = r.Name
	}
	return node
}

// who says what may be sending to a Service that drops.
func (v *auditView) who(b *strings.Builder, s *guard.ServicePlan) {
	if !drops(s) {
		return
	}
	if s.Balancer.Hook == "none" {
		text := "no balancer is known: whether anyone sends to these nodes cannot be told from the cluster; safedrain.dev/nodes on the Service says it"
		if v.report.Probe == nil {
			text += "; audit --probe, run outside these nodes, shows what a client there gets"
		}
		writeAudit(b, "who", text)
	}
	var out []string
	for n := range v.tainted {
		if !slices.ContainsFunc(s.Nodes, func(r guard.NodeRow) bool { return r.Name == n }) {
			out = append(out, n)
		}
	}
	if len(out) == 0 || s.Balancer.Hook != "none" {
		return
	}
	verb := "drops too and is not counted: it is a tainted control plane node"
	if len(out) > 1 {
		verb = "drop too and are not counted: they are tainted control plane nodes"
	}
	writeAudit(b, "", listed(ranges(sorted(out)), 6)+" "+verb)
}

func emptyNames(s *guard.ServicePlan) []string {
	for _, f := range s.Findings {
		if f.Code == guard.ExistingBlackhole && f.Severity.AtLeast(guard.Warn) {
			return f.Nodes
		}
	}
	return nil
}

// andMore writes names as "a and b", or as ranges when they are many.
func andMore(names []string) string {
	if len(names) == 2 {
		return names[0] + " and " + names[1]
	}
	return listed(ranges(names), 6)
}

func ports(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (only " + strings.Join(names, ", ") + ")"
}

func writeAudit(b *strings.Builder, verb, text string) {
	fmt.Fprintf(b, "  %-7s%s\n", verb, wrapped(text, strings.Repeat(" ", 9)))
}
