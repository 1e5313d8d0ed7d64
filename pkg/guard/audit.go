package guard

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AuditFilter narrows an audit; empty fields let everything through.
type AuditFilter struct {
	Namespace string
	Name      string
}

func (f *AuditFilter) lets(k Key) bool {
	return (f.Namespace == "" || f.Namespace == k.Namespace) && (f.Name == "" || f.Name == k.Name)
}

// Audit reports the coverage of every Local Service as it is now: a row for each node that gets its traffic or has its
// endpoints, the blackholes among them, and the settings of workloads that make blackholes.
func Audit(ix Index, filter AuditFilter) CoverageReport {
	report := CoverageReport{APIVersion: APIVersion, Kind: KindCoverageReport, Services: []ServicePlan{}, Findings: []Finding{}}
	loss := &Loss{Nodes: map[string]bool{}, Flags: &Flags{}}
	ground := groundOf(ix)
	var hidden []string
	for svc := range ix.Services() {
		if !filter.lets(svc.Key) {
			continue
		}
		if !svc.Local() {
			report.Skipped.ClusterPolicy++
			if svc.Type == corev1.ServiceTypeLoadBalancer || svc.Type == corev1.ServiceTypeNodePort {
				hidden = append(hidden, svc.Key.String())
			}
			continue
		}
		j := judge(svc, ix, loss)
		j.matrix()
		a := newAudited(j, ground)
		if svc.External {
			a.placement()
			a.tainted()
			a.rollouts()
			a.floors()
			j.impossible()
		}
		if svc.Internal {
			a.internalTrap()
		}
		sortFindings(j.plan.Findings)
		report.Services = append(report.Services, j.plan)
		report.Hazards = append(report.Hazards, a.hazards...)
	}
	slices.SortFunc(report.Services, func(a, b ServicePlan) int { return a.Key().Compare(b.Key()) })
	slices.SortStableFunc(report.Hazards, func(a, b Hazard) int { return a.Service.Compare(b.Service) })
	report.Findings = append(report.Findings, forgotten(ix, &Request{})...)
	report.Findings = append(report.Findings, addressHidden(hidden)...)
	return report
}

// addressHidden notes what cannot be seen from here: whether pods behind policy Cluster pass a client's address on that is
// a node's.
func addressHidden(services []string) []Finding {
	if len(services) == 0 {
		return nil
	}
	slices.Sort(services)
	const shown = 6
	names := strings.Join(services[:min(shown, len(services))], ", ")
	if more := len(services) - shown; more > 0 {
		names += fmt.Sprintf(" +%d", more)
	}
	return []Finding{{
		Code: ClientAddressHidden, Severity: Info,
		Message: "policy Cluster: " + names + ": their pods may see the address of a node in place of the client's",
		Advice: "nothing here tells whether one is an ingress proxy whose backends trust X-Forwarded-For; if so, they are told a node's " +
			"address: policy Local, or PROXY protocol from the balancer to the proxy",
	}}
}

// matrix replaces the rows by one for each node that has endpoints, or gets traffic, or may.
func (j *judgement) matrix() {
	rows := []NodeRow{}
	for n := range j.ix.Nodes() {
		state, ready := j.cover.State(n.Name)
		has := slices.ContainsFunc(j.cover.ports, func(p portCoverage) bool { return p.local[n.Name].state() != StateEmpty })
		sentTo := j.svc.External && n.Ready && j.eligible(n.Name)
		if !has && !sentTo {
			continue
		}
		row := NodeRow{Name: n.Name, Before: state, After: state, Endpoints: ready}
		if j.svc.External {
			row.InRotation = j.seat(n.Name).In
		}
		row.Ports, row.Families, _ = j.cover.portsIn(n.Name, func(s State) bool { return s == StateEmpty })
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b NodeRow) int { return strings.Compare(a.Name, b.Name) })
	j.plan.Nodes = rows
}

// impossible reports combinations of balancer and policy that cannot work, drain or not.
func (j *judgement) impossible() {
	r := &j.svc.Rotation
	switch {
	case r.Unsupported != "":
		j.block(UnsupportedBalancer, r.Unsupported, "use another balancer for this Service, or policy Cluster")
	case len(r.Conflict) > 0:
		j.block(HookConflict, conflictText(r), "annotate the Service with safedrain.dev/hook to choose one")
	case r.Broken != "":
		j.add(Finding{
			Code: HookUnavailable, Severity: SeverityUnproven, Message: r.Hook + " cannot work: " + r.Broken,
			Advice: "safedrain hooks " + j.svc.Key.String() + " says what is missing",
		})
	}
}
