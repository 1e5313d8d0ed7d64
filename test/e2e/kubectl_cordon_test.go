package e2e

import (
	"strings"
	"testing"

	"github.com/safedrain/safedrain/test/controlplane"
)

// cordonCase is a situation of kubectl's own tests of cordon and uncordon: nodes that are cordoned or not, and the lines
// that say what became of them. NODE stands for the first node, OTHER for the second.
type cordonCase struct {
	cordoned bool // before
	uncordon bool // the command; a drain of an empty node else
	args     []string
	lines    []string
	missing  string // the name that an error is about
}

var cordonCases = map[string]cordonCase{
	"node/node syntax":            {args: []string{"node/NODE"}, lines: []string{"node/NODE cordoned"}},
	"uncordon for real":           {cordoned: true, uncordon: true, args: []string{"NODE"}, lines: []string{"node/NODE uncordoned"}},
	"uncordon does nothing":       {uncordon: true, args: []string{"NODE"}, lines: []string{"node/NODE already uncordoned"}},
	"cordon does nothing":         {cordoned: true, args: []string{"NODE"}, lines: []string{"node/NODE already cordoned"}},
	"cordon for real":             {args: []string{"NODE"}, lines: []string{"node/NODE cordoned"}},
	"cordon missing node":         {args: []string{"NODE-missing"}, missing: "NODE-missing"},
	"uncordon missing node":       {cordoned: true, uncordon: true, args: []string{"NODE-missing"}, missing: "NODE-missing"},
	"cordon for multiple nodes":   {args: []string{"NODE", "OTHER"}, lines: []string{"node/NODE cordoned", "node/OTHER cordoned"}},
	"uncordon for multiple nodes": {cordoned: true, uncordon: true, args: []string{"NODE", "OTHER"}, lines: []string{"node/NODE uncordoned", "node/OTHER uncordoned"}},
	"one of several missing":      {args: []string{"NODE", "NODE-missing", "OTHER"}, missing: "NODE-missing"},
	"uncordon, one of several missing": {
		cordoned: true, uncordon: true, args: []string{"NODE", "NODE-missing", "OTHER"}, missing: "NODE-missing",
	},
	"the same node twice": {args: []string{"NODE", "node/NODE"}, lines: []string{"node/NODE cordoned"}},
}

// TestCordonAsKubectl runs kubectl cordon or uncordon on nodes of its own and safedrain on twins of them, and compares the
// lines about cordons and what became of the nodes.
func TestCordonAsKubectl(t *testing.T) {
	for name, c := range cordonCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := cluster.Env(t)
			nodes := e.Nodes(4)
			if c.cordoned {
				kubectl(t, append([]string{"cordon"}, nodes...)...)
			}
			verb := map[bool]string{false: "cordon", true: "uncordon"}[c.uncordon]
			args := append([]string{verb}, c.named(c.args, nodes[2:])...)
			stdout, stderr, code := program{path: kubectlBin, kubeconfig: kubeconfig}.run(t, args...)
			c.check(e, "kubectl", nodes[2:], stdout, stderr, code)

			args = c.named(c.args, nodes[:2])
			if c.uncordon {
				args = append([]string{"uncordon"}, args...)
			}
			stdout, stderr, code = run(t, args...)
			c.check(e, "safedrain", nodes[:2], stdout, stderr, code)
		})
	}
}

// named puts the names of nodes in place of NODE and OTHER.
func (c *cordonCase) named(texts, nodes []string) []string {
	var out []string
	for _, text := range texts {
		out = append(out, strings.NewReplacer("NODE", nodes[0], "OTHER", nodes[1]).Replace(text))
	}
	return out
}

func (c *cordonCase) check(e *controlplane.Env, who string, nodes []string, stdout, stderr string, code int) {
	e.Helper()
	var got []string
	for line := range strings.Lines(stdout) {
		if strings.Contains(line, "cordoned") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := c.named(c.lines, nodes)
	failed := c.missing != ""
	// kubectl says twice what became of a node that is named twice.
	ours := who == "safedrain"
	if ours && strings.Join(got, "\n") != strings.Join(want, "\n") {
		e.Errorf("%s: lines %q, want %q", who, got, want)
	}
	for _, line := range want {
		if !strings.Contains(stdout, line+"\n") {
			e.Errorf("%s: no line %q in\n%s", who, line, stdout)
		}
	}
	if (code != 0) != failed || ours && failed && code != 1 || !strings.Contains(stderr, c.named([]string{c.missing}, nodes)[0]) {
		e.Errorf("%s: exit code %d\n%s%s", who, code, stdout, stderr)
	}
	for i, node := range nodes {
		named := strings.Contains(strings.Join(want, "\n"), "node/"+node)
		wantCordoned := c.cordoned
		if named {
			wantCordoned = !c.uncordon
		}
		if got := getNode(e, node).Spec.Unschedulable; got != wantCordoned {
			e.Errorf("%s: node %d cordoned %t, want %t", who, i, got, wantCordoned)
		}
	}
}
