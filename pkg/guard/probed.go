package guard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Probe is one port of one Service on one node, as it was probed.
type Probe struct {
	Service Key
	Node    string
	PortProbe
}

// NodeProbe is what was probed of one Service on one node.
type NodeProbe struct {
	Result ProbeResult `json:"result"`
	Ports  []PortProbe `json:"ports"`
}

// ProbeResult is the sum of the ports of a node.
type ProbeResult string

// Disagrees when some port does; NotCounted when no port counts.
const (
	ProbeAgrees     ProbeResult = "Agrees"
	ProbeContradict ProbeResult = "Disagrees"
	ProbeNotCounted ProbeResult = "NotCounted"
)

// ProbeSummary says what the probes of an audit amount to.
type ProbeSummary struct {
	From     []string `json:"from"`     // addresses from which the nodes were probed
	Place    string   `json:"place"`    // where that is: "outside the nodes", "on node-3", "in a pod on node-3"
	Ports    int      `json:"ports"`    // ports of nodes in the report
	Counted  int      `json:"counted"`  // of them observed, in a way that proves something
	Disagree int      `json:"disagree"` // of these seen otherwise than the rules say
	NoProof  []string `json:"noProof"`  // why the probes of a whole family prove nothing from here
}

// JudgeProbes puts the probes beside the rows of an audit and adds the findings ProbeDisagrees. A family in which no node
// answered anything is not counted: from here silence proves nothing. The probes are taken in any order.
func JudgeProbes(report *CoverageReport, probes []Probe, from []string, place string) {
	summary := &ProbeSummary{From: from, Place: place, Ports: len(probes), NoProof: []string{}}
	silent := Silent(probes)
	for _, family := range silent {
		summary.NoProof = append(summary.NoProof, silence(family))
	}
	byNode := map[Key]map[string][]PortProbe{}
	for _, p := range probes {
		if slices.Contains(silent, p.Family) && p.Counts() {
			p.NotCounted = silence(p.Family)
		}
		summary.add(&p.PortProbe)
		if byNode[p.Service] == nil {
			byNode[p.Service] = map[string][]PortProbe{}
		}
		byNode[p.Service][p.Node] = append(byNode[p.Service][p.Node], p.PortProbe)
	}
	for i := range report.Services {
		s := &report.Services[i]
		for k := range s.Nodes {
			if ports := byNode[s.Key()][s.Nodes[k].Name]; len(ports) > 0 {
				slices.SortFunc(ports, comparePorts)
				s.Nodes[k].Probe = &NodeProbe{Result: resultOf(ports), Ports: ports}
			}
		}
		if f, ok := disagreement(s); ok {
			s.Findings = append(s.Findings, f)
			sortFindings(s.Findings)
		}
	}
	report.Probe = summary
}

func (s *ProbeSummary) add(p *PortProbe) {
	if p.Counts() {
		s.Counted++
	}
	if p.Disagrees() {
		s.Disagree++
	}
}

// Silent lists the families in which ports were observed and no node answered on any of them.
func Silent(probes []Probe) []corev1.IPFamily {
	answered := map[corev1.IPFamily]bool{}
	for i := range probes {
		if p := &probes[i]; p.Counts() {
			answered[p.Family] = answered[p.Family] || p.Answered()
		}
	}
	var out []corev1.IPFamily
	for family, heard := range answered {
		if !heard {
			out = append(out, family)
		}
	}
	slices.Sort(out)
	return out
}

func silence(family corev1.IPFamily) string {
	return "no node answers on any port over " + string(family) + " from here"
}

func resultOf(ports []PortProbe) ProbeResult {
	result := ProbeNotCounted
	for i := range ports {
		switch {
		case ports[i].Disagrees():
			return ProbeContradict
		case ports[i].Counts():
			result = ProbeAgrees
		}
	}
	return result
}

// disagreement is the finding about every port of a Service that was seen otherwise than the rules say.
func disagreement(s *ServicePlan) (Finding, bool) {
	type contradiction struct {
		port, detail        string
		predicted, observed Answer
		times               int
	}
	nodesOf := map[contradiction][]string{}
	var order []contradiction
	f := Finding{Code: ProbeDisagrees, Severity: Warn}
	for i := range s.Nodes {
		if s.Nodes[i].Probe == nil {
			continue
		}
		for _, p := range s.Nodes[i].Probe.Ports {
			if !p.Disagrees() {
				continue
			}
			c := contradiction{p.Title(), p.remark(), p.Predicted, p.Observed, p.Times}
			if nodesOf[c] == nil {
				order = append(order, c)
			}
			nodesOf[c] = append(nodesOf[c], s.Nodes[i].Name)
			f.Nodes = append(f.Nodes, s.Nodes[i].Name)
		}
	}
	if len(order) == 0 {
		return f, false
	}
	slices.Sort(f.Nodes)
	f.Nodes = slices.Compact(f.Nodes)
	var parts, advice []string
	for _, c := range order {
		where := ""
		if len(nodesOf[c]) < len(f.Nodes) {
			where = " on " + strings.Join(slices.Compact(nodesOf[c]), ", ")
		}
		parts = append(parts, fmt.Sprintf("%s%s: the rules say %s, a probe saw %s%s%s",
			c.port, where, c.predicted.Words(), c.observed.Words(), times(c.times), c.detail))
		if a := adviceOn(c.predicted, c.observed); !slices.Contains(advice, a) {
			advice = append(advice, a)
		}
	}
	f.Message, f.Advice = strings.Join(parts, "; "), strings.Join(advice, "; ")
	return f, true
}

// remark is what was seen besides the answer itself.
func (p *PortProbe) remark() string {
	if p.Detail == "" || p.Detail == "says "+string(p.Observed) {
		return ""
	}
	return " (" + p.Detail + ")"
}

// Title names a port with its number, and its family where that is not the usual one: "http/TCP 30090 IPv6".
func (p *PortProbe) Title() string {
	name := p.Port
	if name == PortHealthCheck {
		name = "health check"
	}
	title := fmt.Sprintf("%s %d", name, p.Number)
	if p.Family == corev1.IPv6Protocol {
		title += " IPv6"
	}
	return title
}

// Words writes an answer for people.
func (a Answer) Words() string {
	switch a {
	case AnswerOK, AnswerRefused, AnswerUnreachable, AnswerStrange:
		return strings.ToLower(string(a))
	case AnswerBlackhole:
		return "BLACKHOLE"
	}
	return cmp.Or(string(a), "-")
}

func times(n int) string {
	switch n {
	case 0, 1:
		return ""
	case 2:
		return " twice"
	}
	return fmt.Sprintf(" %d times", n)
}

// adviceOn says where to look when a probe saw otherwise than the rules say.
func adviceOn(predicted, observed Answer) string {
	switch {
	case observed == AnswerUnreachable:
		return "look at the way from here to the node: no route, or a router that answers for it"
	case observed == AnswerStrange:
		return "look at what listens on that port of the node: it is not this Service's proxy"
	case predicted == AnswerOK && observed == AnswerBlackhole:
		return "look for what drops it: a firewall or NetworkPolicy on the way, or a proxy on the node that has stopped and whose rules are old"
	case predicted == AnswerOK && observed == AnswerRefused:
		return "look at the pod: its target port may be closed; or at the proxy on the node, whose rules may be old"
	case observed == AnswerOK:
		return "look at the proxy on the node: its rules are old, or it is not kube-proxy; or something else listens on that port"
	case predicted == AnswerHealthy && observed == AnswerUnhealthy:
		return "look at the proxy on the node: it has not heard of the endpoint, or holds itself for unhealthy"
	case predicted == AnswerUnhealthy && observed == AnswerHealthy:
		return "look at the proxy on the node: it has not heard that the endpoint is gone, and the balancer goes on sending"
	case predicted == AnswerRefused || predicted == AnswerBlackhole:
		return "look at the proxy on the node: its rules may be old, or a firewall answers in its place"
	}
	return "look at the proxy on the node: nothing serves its health check port, or a firewall stands before it"
}
