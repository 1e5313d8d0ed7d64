package casetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const report = `{
  "kind": "DrainPlan", "verdict": "Unsafe", "nodes": ["n1", "n2"], "withdraw": null, "accepted": [],
  "services": [
    {"namespace": "a", "name": "b", "endpoints": {"before": 2, "after": 1}, "nodes": [{"name": "n1", "inRotation": "Yes"}],
     "findings": [{"code": "LastEndpoint", "severity": "Block"}, {"code": "GoesWithNode", "severity": "Warn", "nodes": ["n1"]}]},
    {"namespace": "a", "name": "c", "endpoints": {"before": 1, "after": 1}, "nodes": [], "findings": []}
  ],
  "pods": [{"name": "p", "action": "Evict"}],
  "findings": [{"code": "BudgetNever", "budget": "x/a"}]
}`

// runOf builds a run from a line of YAML.
func runOf(t *testing.T, body string) Command {
	t.Helper()
	c, err := parse([]byte("id: T\nruns:\n- args: [plan, n1]\n" + body))
	if err != nil {
		t.Fatal(err)
	}
	return c.Runs[0]
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		run  string
		out  string // "" for the report above
		exit int
		want string // a part of the only error, "" for none
	}{
		"want a scalar":                   {run: "  want: {verdict: Unsafe}"},
		"want another scalar":             {run: "  want: {verdict: Safe}", want: `verdict: want "Safe", got "Unsafe"`},
		"want a key that is absent":       {run: "  want: {steps: []}", want: `no key "steps"`},
		"want one of a list":              {run: "  want: {nodes: [n2]}"},
		"want all of a list in any order": {run: "  want: {nodes: [n2, n1]}"},
		"want what no element is":         {run: "  want: {nodes: [n1, n3]}", want: `nodes: no element matches "n3"`},
		"want an empty list":              {run: "  want: {accepted: []}"},
		"want a list where there is null": {run: "  want: {withdraw: []}", want: "withdraw: want a list, got null"},
		"want a list where there is a map": {
			run: "  want: {services: [{name: b, endpoints: [1]}]}", want: "no element matches",
		},
		"want a number":            {run: "  want: {services: [{name: b, endpoints: {before: 2, after: 1}}]}"},
		"want another number":      {run: "  want: {services: [{name: b, endpoints: {before: 2, after: 0}}]}", want: "no element matches"},
		"a number is not a string": {run: "  want: {services: [{name: b, endpoints: {before: '2'}}]}", want: "no element matches"},
		"Yes is not true":          {run: "  want: {services: [{nodes: [{inRotation: 'Yes'}]}]}"},
		"keys of two elements do not make one": {
			run: "  want: {services: [{name: c, endpoints: {before: 2}}]}", want: "no element matches",
		},
		"want inside a list of one": {run: "  want: {pods: [{name: p, action: Skip}]}", want: `pods[0].action: want "Skip", got "Evict"`},

		"some by path":              {run: "  some: [{path: 'services[].findings[]', match: {code: LastEndpoint}}]"},
		"some by path, elsewhere":   {run: "  some: [{path: 'services[].findings[]', match: {code: BudgetNever}}]", want: "nothing at services[].findings[]"},
		"some everywhere":           {run: "  some: [{path: '**', match: {code: BudgetNever}}]"},
		"some everywhere, deep":     {run: "  some: [{path: '**', match: {code: GoesWithNode, nodes: [n1]}}]"},
		"some everywhere, the top":  {run: "  some: [{path: '**', match: {kind: DrainPlan}}]"},
		"some everywhere, absent":   {run: "  some: [{path: '**', match: {code: BudgetBroken}}]", want: "nothing at **"},
		"some, only half a match":   {run: "  some: [{path: '**', match: {code: LastEndpoint, severity: Warn}}]", want: "nothing at **"},
		"never, absent":             {run: "  never: [{path: '**', match: {code: BudgetBroken}}]"},
		"never, there":              {run: "  never: [{path: '**', match: {code: LastEndpoint}}]", want: "never: at **"},
		"never by path":             {run: "  never: [{path: 'findings[]', match: {code: LastEndpoint}}]"},
		"never by path, there":      {run: "  never: [{path: 'services[]', match: {name: b, findings: [{code: LastEndpoint}]}}]", want: "never: at services[]"},
		"never, of another Service": {run: "  never: [{path: 'services[]', match: {name: c, findings: [{code: LastEndpoint}]}}]"},
		"never where null is":       {run: "  never: [{path: 'withdraw[]', match: {name: b}}]"},
		"never at a top key that is not": {
			run: "  never: [{path: 'service[]', match: {name: b}}]", want: "the report has no service",
		},
		"never at a list that is a map": {
			run: "  never: [{path: 'services[].endpoints[]', match: {name: b}}]", want: "endpoints is no list",
		},
		"never in a scalar": {run: "  never: [{path: 'nodes[].name', match: {name: b}}]", want: "name is looked for in"},

		"exit 0 by default":          {run: "  want: {verdict: Unsafe}", exit: 0},
		"exit 3 by default":          {run: "  want: {verdict: Unsafe}", exit: 3},
		"exit 4 by default":          {run: "  want: {verdict: Unsafe}", exit: 4, want: "exit 4, want 0 or 3"},
		"exit as said":               {run: "  exit: 3", exit: 3},
		"exit not as said":           {run: "  exit: 0", exit: 3, want: "exit 3, want 0"},
		"exit 1 without a document":  {run: "  exit: 1", exit: 1, out: "\n"},
		"exit 1 with one":            {run: "  exit: 1", exit: 1, want: "leaves something on stdout"},
		"no document":                {run: "  exit: 0", out: "done", want: "stdout is no JSON document"},
		"two documents":              {run: "  exit: 0", out: "{} {}", want: "more than one JSON document"},
		"nothing at all":             {run: "  exit: 0", out: " ", want: "stdout is no JSON document"},
		"a report that is no object": {run: "  want: {verdict: Safe}", out: "[]", want: "report: want a map, got []"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			errs := Check(runOf(t, test.run), "dir", func(a []string) ([]byte, int) {
				args = a
				if test.out != "" {
					return []byte(test.out), test.exit
				}
				return []byte(report), test.exit
			})
			if want := []string{"plan", "n1", "-f", filepath.Join("dir", "cluster.yaml"), "-o", "json"}; !slices.Equal(args, want) {
				t.Errorf("args %q, want %q", args, want)
			}
			switch {
			case test.want == "" && len(errs) > 0:
				t.Errorf("unexpected: %v", errs)
			case test.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), test.want)):
				t.Errorf("got %v, want one error with %q", errs, test.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"unknown key":                "id: A\nruns: [{args: [plan], exit: 0}]\nexits: 3",
		"unknown key of a run":       "id: A\nruns: [{args: [plan], exit: 0, wants: {}}]",
		"duplicate key":              "id: A\nid: B\nruns: [{args: [plan], exit: 0}]",
		"no runs":                    "id: A",
		"no id":                      "runs: [{args: [plan], exit: 0}]",
		"no args":                    "id: A\nruns: [{exit: 0}]",
		"a run that asserts nothing": "id: A\nruns: [{args: [plan]}]",
		"a report after exit 1":      "id: A\nruns: [{args: [plan], exit: 1, want: {verdict: Safe}}]",
		"a path with an index":       "id: A\nruns: [{args: [plan], never: [{path: 'a[0]', match: {b: c}}]}]",
		"a path with a star":         "id: A\nruns: [{args: [plan], never: [{path: 'a.*', match: {b: c}}]}]",
		"an empty path":              "id: A\nruns: [{args: [plan], never: [{match: {b: c}}]}]",
		"an empty match":             "id: A\nruns: [{args: [plan], some: [{path: '**', match: {}}]}]",
		"no match":                   "id: A\nruns: [{args: [plan], some: [{path: '**'}]}]",
	} {
		t.Run(name, func(t *testing.T) {
			if c, err := parse([]byte(text)); err == nil {
				t.Errorf("accepted: %+v", c)
			}
		})
	}
}

// TestCasesLoad loads every case and makes sure that each of its assertions can fail.
func TestCasesLoad(t *testing.T) {
	root := filepath.Join("..", "..", "testdata", "cases")
	dirs, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) < 40 {
		t.Fatalf("%d cases in %s, want 40", len(dirs), root)
	}
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) {
			c, err := Load(filepath.Join(root, d.Name()))
			if err != nil {
				t.Fatal(err)
			}
			for _, run := range c.Runs {
				empty := map[string]any{"nodes": []any{}, "services": []any{}, "pods": []any{}, "findings": []any{}}
				if (run.Want != nil || len(run.Some) > 0) && len(run.judge(empty)) == 0 {
					t.Errorf("%q passes with an empty report", run.Args)
				}
				for _, never := range run.Never {
					alone := Command{Never: []Selector{never}}
					if len(alone.judge(reportWith(t, never))) != 1 {
						t.Errorf("%q: never %v passes where it is", run.Args, never)
					}
				}
			}
		})
	}
}

// reportWith builds a report that has at the selector's path what the selector matches.
func reportWith(t *testing.T, s Selector) any {
	t.Helper()
	steps, err := parsePath(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	if steps == nil {
		return map[string]any{"deep": []any{map[string]any{"er": s.Match}}}
	}
	v := s.Match
	for _, step := range slices.Backward(steps) {
		if step.list {
			v = []any{v}
		}
		v = map[string]any{step.key: v}
	}
	return v
}
