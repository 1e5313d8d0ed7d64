package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// auditView is an audit with what its text needs besides.
type auditView struct {
	report  *guard.CoverageReport
	typed   typed
	wide    bool
	tainted map[string]bool // control plane nodes that take no pods
	filter  guard.AuditFilter
	source  SourceFlags
}

// auditText is what `safedrain audit` prints: how many Services drop traffic, the matrix with those first, and for each
// Service with a finding what it is about and what mends it.
func auditText(v *auditView) string {
	services := slices.Clone(v.report.Services)
	slices.SortStableFunc(services, func(a, b guard.ServicePlan) int {
		return cmp.Or(auditRank(&a)-auditRank(&b), a.Key().Compare(b.Key()))
	})
	var b strings.Builder
	b.WriteString(v.answer(services) + "\n")
	if len(services) > 0 {
		b.WriteString("\n" + v.matrix(services))
	}
	b.WriteString(v.probed(services))
	for i := range services {
		if worst(services[i].Findings).AtLeast(guard.Warn) || v.wide && len(services[i].Findings) > 0 {
			b.WriteString("\n" + v.about(&services[i]))
		}
	}
	for _, f := range v.report.Findings {
		if f.Code == guard.ClientAddressHidden && !v.wide {
			continue
		}
		b.WriteByte('\n')
		text := f.Message
		if len(f.Nodes) > 0 {
			text = strings.Join(slashed(ranges(f.Nodes)), ", ") + ": " + text
		}
		writeLabelled(&b, strings.ToUpper(string(f.Severity)), text)
		if f.Advice != "" {
			writeVerb(&b, "fix", f.Advice)
		}
	}
	b.WriteString(v.skipped())
	return b.String()
}

// auditRank puts Services that drop traffic first, then those with other findings, then the rest.
func auditRank(s *guard.ServicePlan) int {
	switch {
	case drops(s):
		return 0
	case worst(s.Findings).AtLeast(guard.Warn):
		return 1
	}
	return 2
}

// drops reports whether nodes that get traffic, or may, have no endpoint today.
func drops(s *guard.ServicePlan) bool {
	return slices.ContainsFunc(s.Findings, func(f guard.Finding) bool {
		return f.Code == guard.ExistingBlackhole && f.Severity.AtLeast(guard.Warn)
	})
}

func (v *auditView) answer(services []guard.ServicePlan) string {
	n, empty, rows := 0, 0, 0
	var hazards int
	for i := range services {
		s := &services[i]
		switch {
		case drops(s):
			n++
			rows = len(s.Nodes)
			empty = emptyNodes(s)
		case worst(s.Findings).AtLeast(guard.Warn):
			hazards++
		}
	}
	total := count(len(services), "Local Service")
	switch {
	case len(services) == 0:
		return "no Local Service" + v.where()
	case n == 1:
		return fmt.Sprintf("1 of %d Local Services%s drops traffic: %d of %s have no endpoint", len(services), v.where(), empty, count(rows, "node"))
	case n > 1:
		return fmt.Sprintf("%d of %d Local Services%s drop traffic: nodes that get it have no endpoint", n, len(services), v.where())
	case hazards > 0 && v.report.Probe != nil && v.report.Probe.Disagree > 0:
		return fmt.Sprintf("%s%s, none drops traffic by the rules, but a probe saw otherwise; %s", total, v.where(), count(hazards, "finding"))
	case hazards > 0:
		return fmt.Sprintf("%s%s, none drops traffic now; %s", total, v.where(), count(hazards, "finding"))
	case len(services) == 1 && !slices.ContainsFunc(services[0].Nodes, isEmpty):
		return "1 Local Service, every node serves"
	}
	return total + v.where() + ", none drops traffic"
}

func (v *auditView) where() string {
	switch {
	case v.filter.Name != "":
		return " " + v.filter.Namespace + "/" + v.filter.Name
	case v.filter.Namespace != "":
		return " in namespace " + v.filter.Namespace
	}
	return ""
}

func isEmpty(r guard.NodeRow) bool { return r.Before == guard.StateEmpty }

func emptyNodes(s *guard.ServicePlan) int {
	n := 0
	for _, r := range s.Nodes {
		if isEmpty(r) {
			n++
		}
	}
	return n
}

// columnsShown is the number of nodes that get a column of their own.
const columnsShown = 8

// matrix is Service by node; with many nodes the counts and the names of the empty ones.
func (v *auditView) matrix(services []guard.ServicePlan) string {
	var nodes []string
	for i := range services {
		for _, r := range services[i].Nodes {
			nodes = append(nodes, r.Name)
		}
	}
	nodes = sorted(nodes)
	if len(nodes) > columnsShown && !v.wide {
		return v.counts(services)
	}
	t := table{head: append(append([]string{"SERVICE", "BALANCER"}, nodes...), "FINDINGS")}
	for i := range services {
		s := &services[i]
		cells := []string{s.Key().String(), s.Balancer.Hook}
		for _, n := range nodes {
			cells = append(cells, cell(s, n))
		}
		t.row(append(cells, findingCodes(s))...)
	}
	return t.String()
}

func (v *auditView) counts(services []guard.ServicePlan) string {
	t := table{head: []string{"SERVICE", "BALANCER", "NODES", "SERVING", "EMPTY", "FINDINGS"}}
	for i := range services {
		s := &services[i]
		var empty []string
		for _, r := range s.Nodes {
			if isEmpty(r) {
				empty = append(empty, r.Name)
			}
		}
		names := "-"
		if len(empty) > 0 {
			names = listed(ranges(empty), 4)
		}
		t.row(s.Key().String(), s.Balancer.Hook, fmt.Sprint(len(s.Nodes)), fmt.Sprint(len(s.Nodes)-len(empty)), names, findingCodes(s))
	}
	return t.String()
}

// cell is what a node has of a Service: the number of its ready endpoints, or why none counts.
func cell(s *guard.ServicePlan, node string) string {
	for _, r := range s.Nodes {
		if r.Name != node {
			continue
		}
		switch r.Before {
		case guard.StateEmpty:
			if r.InRotation == guard.No {
				return "empty, out"
			}
			return "EMPTY"
		case guard.StateTerminating:
			return "terminating"
		}
		return fmt.Sprint(r.Endpoints)
	}
	return "-"
}

func findingCodes(s *guard.ServicePlan) string {
	var codes []string
	for _, f := range s.Findings {
		if f.Severity.AtLeast(guard.Warn) && !slices.Contains(codes, string(f.Code)) {
			codes = append(codes, string(f.Code))
		}
	}
	if len(codes) == 0 {
		return "-"
	}
	return strings.Join(codes, ", ")
}

func (v *auditView) skipped() string {
	s := v.report.Skipped
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{s.ClusterPolicy, "of policy Cluster"}, {s.OtherProxy, "of another proxy"}, {s.Headless, "headless"}, {s.ExternalName, "ExternalName"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 || !v.wide {
		return ""
	}
	return "\nNot looked at: " + strings.Join(parts, ", ") + "\n"
}
