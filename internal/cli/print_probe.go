package cli

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// probeLine is a row of the table of probes: the nodes of a port that have the same to say.
type probeLine struct {
	service           guard.Key
	port              string
	predicted, seen   string
	note              string
	disagrees, counts bool
	number            int32
}

// agreeingShown is the number of rows up to which those that agree are shown too.
const agreeingShown = 30

// probed says what the nodes answered, beside what the rules say; "" where nothing was probed.
func (v *auditView) probed(services []guard.ServicePlan) string {
	sum := v.report.Probe
	if sum == nil {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n" + wrapped(probeAnswer(sum), "  ") + "\n")
	lines, nodes := probeLines(services)
	hidden := 0
	if len(lines) > agreeingShown && !v.wide {
		all := len(lines)
		lines = slices.DeleteFunc(lines, func(l probeLine) bool { return l.counts && !l.disagrees })
		hidden = all - len(lines)
	}
	t := table{head: []string{"SERVICE", "PORT", "NODES", "RULES SAY", "SEEN"}}
	var notes []string
	for _, l := range lines {
		seen := l.seen
		if l.note != "" {
			i := slices.Index(notes, l.note)
			if i < 0 {
				i, notes = len(notes), append(notes, l.note)
			}
			seen = strings.TrimPrefix(fmt.Sprintf("%s, not counted [%d]", seen, i+1), ", ")
		}
		limit := 4
		if v.wide {
			limit = 0
		}
		t.row(l.service.String(), l.port, listed(ranges(nodes[l]), limit), l.predicted, seen)
	}
	if len(t.rows) > 0 {
		b.WriteString("\n" + t.String())
	}
	if hidden > 0 {
		fmt.Fprintf(&b, "%s that agree (-o wide)\n", count(hidden, "more row"))
	}
	for i, note := range notes {
		fmt.Fprintf(&b, "  [%d] %s\n", i+1, wrapped(note, "      "))
	}
	return b.String()
}

// probeAnswer sums up the probes in a sentence.
func probeAnswer(sum *guard.ProbeSummary) string {
	from := "Probed from here, " + sum.Place
	if len(sum.From) > 0 {
		from = "Probed from " + strings.Join(sum.From, ", ") + ", " + sum.Place
	}
	switch {
	case sum.Ports == 0:
		return from + ": no Local Service has a node port or a health check port"
	case sum.Counted == 0 && len(sum.NoProof) > 0:
		return from + ": proves nothing from here: " + strings.Join(sum.NoProof, "; ") + ": a firewall on the way, or no route"
	case sum.Counted == 0:
		return from + ": proves nothing, no probe counts"
	}
	parts := []string{fmt.Sprintf("%d as the rules say", sum.Counted-sum.Disagree)}
	if sum.Disagree > 0 {
		parts = append(parts, fmt.Sprintf("%d otherwise (ProbeDisagrees)", sum.Disagree))
	}
	if left := sum.Ports - sum.Counted; left > 0 {
		parts = append(parts, fmt.Sprintf("%d not counted", left))
	}
	text := fmt.Sprintf("%s: of %s %s", from, count(sum.Ports, "port"), strings.Join(parts, ", "))
	for _, why := range sum.NoProof {
		text += "; " + why
	}
	return text
}

// probeLines groups the ports that were probed, those that disagree first, then those that do not count.
func probeLines(services []guard.ServicePlan) ([]probeLine, map[probeLine][]string) {
	nodes := map[probeLine][]string{}
	var lines []probeLine
	for i := range services {
		s := &services[i]
		for k := range s.Nodes {
			if s.Nodes[k].Probe == nil {
				continue
			}
			for _, p := range s.Nodes[k].Probe.Ports {
				l := probeLine{
					service: s.Key(), port: p.Title(), number: p.Number, predicted: p.Predicted.Words(),
					note: p.NotCounted, disagrees: p.Disagrees(), counts: p.Counts(),
				}
				if p.Port == guard.PortHealthCheck {
					l.number = math.MaxInt32 // last
				}
				if p.Observed != "" {
					l.seen = p.Observed.Words()
				}
				if nodes[l] == nil {
					lines = append(lines, l)
				}
				nodes[l] = append(nodes[l], s.Nodes[k].Name)
			}
		}
	}
	slices.SortFunc(lines, func(a, b probeLine) int {
		return cmp.Or(
			a.rank()-b.rank(), a.service.Compare(b.service), cmp.Compare(a.number, b.number), strings.Compare(a.port, b.port),
			a.bad()-b.bad(), strings.Compare(a.predicted, b.predicted), strings.Compare(a.seen, b.seen), strings.Compare(a.note, b.note),
		)
	})
	return lines, nodes
}

func (l *probeLine) rank() int {
	switch {
	case l.disagrees:
		return 0
	case l.counts:
		return 1
	}
	return 2
}

// bad puts what serves before what does not.
func (l *probeLine) bad() int {
	if l.predicted == guard.AnswerOK.Words() || l.predicted == guard.AnswerHealthy.Words() {
		return 0
	}
	return 1
}
