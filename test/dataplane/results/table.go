package results

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Title says in one sentence what an experiment or a balancer is.
type Title struct{ Name, Text string }

// Titles are the experiments and balancers in the order in which tables show them.
type Titles struct {
	Experiments []Title
	Balancers   []Title
	// Plotted is the experiment that the plot shows.
	Plotted string
}

func names(titles []Title) []string {
	out := make([]string, 0, len(titles))
	for _, t := range titles {
		out = append(out, t.Name)
	}
	return out
}

// Write makes the tables and the plot of a store's directory from its records.
func Write(s *Store, titles Titles) error {
	records := s.Records()
	if err := replaceFile(filepath.Join(s.dir, "README.md"), []byte(document(records, titles))); err != nil {
		return err
	}
	return replaceFile(filepath.Join(s.dir, "drain.svg"), []byte(Plot(records, titles)))
}

// document is the page of tables.
func document(records []*Record, titles Titles) string {
	var b strings.Builder
	b.WriteString(head)
	all := groups(records, names(titles.Experiments), names(titles.Balancers))
	if markPaused(all) {
		b.WriteString(older)
	}
	for _, e := range titles.Experiments {
		of := slices.DeleteFunc(slices.Clone(all), func(g *group) bool { return g.experiment != e.Name })
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", e.Name, e.Text)
		if slices.ContainsFunc(of, func(g *group) bool { return len(g.runs[Kubectl]) > 0 }) {
			b.WriteString(compared(of))
		} else {
			b.WriteString(alone(of))
		}
	}
	b.WriteString(timing(all))
	b.WriteString(foot(records, titles))
	return b.String()
}

const head = `# What was measured

Made by ` + "`make dataplane-full`" + ` from [runs.jsonl](runs.jsonl), which has a line for every run. Not edited by hand.

Real kube-proxy, real balancers, pods that are real processes, nodes that are network namespaces of one machine. New connections come by
schedule, whatever became of those before; one that has no answer within 0.9 s has failed. *Cut* counts new connections that were open already
and were reset on their way to the answer, which a moved address does to those that it meets. *Broken* counts kept connections, with a request a second, that
were reset or failed one. Ranges are the least and the greatest of the runs. safedrain's runs include the return of the node by ` + "`safedrain uncordon`" + `, with load;
of kubectl's only those of a rolling upgrade and of a maintenance do. But for a surge the pods that a drain evicts fit on no other node and come back with theirs.

![Failed requests per second over time](drain.svg)
`

// paused is the build of safedrain whose runs had a pause at the return; older says what their mark means.
const paused = "0e18f441426e"

const older = `
` + "`*`" + `: measured with an older safedrain (` + paused + `). There the node was made schedulable by kubectl first, and its pods were Ready for 2 s before ` + "`safedrain uncordon`" + ` put it back:
without that pause it lost requests through MetalLB, up to 20 in a run.
`

// compared is the table of an experiment that kubectl and another tool went through.
func compared(of []*group) string {
	other := Safedrain
	if slices.ContainsFunc(of, func(g *group) bool { return len(g.runs[Gate]) > 0 }) {
		other = Gate
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| balancer | kube-proxy | runs | kubectl: failed | over | how | cut | broken | %s: failed | of | cut | broken |\n", other)
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, g := range of {
		k, s := g.runs[Kubectl], g.runs[other]
		fmt.Fprintf(&b, "| %s | %s | %d + %d | %s | %s s | %s | %s | %s | **%s** | %d | %s | %s |\n", g.balancer, g.mode, len(k), len(s),
			spanOf(k, failed), spanOf(k, lasted), classes(k), spanOf(k, cut), spanOf(k, broken), spanOf(s, failed), requests(s), spanOf(s, cut), spanOf(s, broken))
	}
	return b.String()
}

// alone is the table of an experiment that only safedrain went through: one with a fault.
func alone(of []*group) string {
	var b strings.Builder
	b.WriteString("| balancer | kube-proxy | runs | exit code | failed | of | cut | broken | as expected |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, g := range of {
		s := g.runs[Safedrain]
		expected := 0
		for _, r := range s {
			if len(r.Problems) == 0 {
				expected++
			}
		}
		exit := spanOf(s, func(r *Record) float64 { return float64(r.Exit) })
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %d | %s | %s | %d of %d |\n", g.balancer, g.mode, len(s), exit,
			spanOf(s, failed), requests(s), spanOf(s, cut), spanOf(s, broken), expected, len(s))
	}
	return b.String()
}

// timing is the table of how long balancers take, over all safe drains of one node without a fault.
func timing(all []*group) string {
	byBalancer := map[string][]*Record{}
	var order []string
	for _, g := range all {
		for _, r := range g.runs[Safedrain] {
			if r.Times == nil || r.Fault || r.Exit != 0 {
				continue
			}
			name := g.balancer + ", " + r.Way
			if byBalancer[name] == nil {
				order = append(order, name)
			}
			byBalancer[name] = append(byBalancer[name], r)
		}
	}
	if len(order) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(timingHead)
	for _, name := range order {
		rs := byBalancer[name]
		col := func(value func(*Times) float64) string {
			s := spanOf(rs, func(r *Record) float64 { return value(r.Times) })
			return fmt.Sprintf("%.2f–%.2f", s.low, s.high)
		}
		early := spanOf(rs, func(r *Record) float64 {
			if r.Times.Proven == 0 {
				return 0
			}
			return max(0, r.Times.Switched-r.Times.Proven)
		})
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %.2f | %s | %s | %s | %s |\n", name, len(rs),
			col(func(t *Times) float64 { return t.Removed }), col(func(t *Times) float64 { return t.Switched }),
			col(func(t *Times) float64 { return t.Proven }), early.high, col(func(t *Times) float64 { return t.Settle }),
			col(func(t *Times) float64 { return t.Terminated }),
			col(func(t *Times) float64 { return t.Total }), col(func(t *Times) float64 { return t.Bound }))
	}
	return b.String()
}

const timingHead = `
## How long a balancer takes

Of every safe drain of one node, in seconds from the moment the balancer is told. *Removed*: until the balancer itself says that it does not send to
the node any more. *Switched*: until its data plane does not. *Proven*: until safedrain has its proof, where there is one. Where a proof comes before the
switch, the settle time has to cover the difference.

| balancer, way | drains | removed | switched | proven | proof before the switch by at most | settled | pods ended | whole drain | may be at most |
|---|---|---|---|---|---|---|---|---|---|
`

// foot says what balancers and builds were measured.
func foot(records []*Record, titles Titles) string {
	var b strings.Builder
	b.WriteString("\n## The balancers\n\n| name | what it is |\n|---|---|\n")
	for _, t := range titles.Balancers {
		fmt.Fprintf(&b, "| %s | %s |\n", t.Name, t.Text)
	}
	type origin struct{ commit, build string }
	count := map[origin]int{}
	for _, r := range records {
		count[origin{r.Commit, r.Build}]++
	}
	origins := make([]origin, 0, len(count))
	for o := range count {
		origins = append(origins, o)
	}
	slices.SortFunc(origins, func(a, b origin) int { return cmp.Or(cmp.Compare(a.commit, b.commit), cmp.Compare(a.build, b.build)) })
	b.WriteString("\n")
	for _, o := range origins {
		fmt.Fprintf(&b, "%d records are of commit %s (safedrain %s).\n", count[o], o.commit, o.build)
	}
	return b.String()
}
