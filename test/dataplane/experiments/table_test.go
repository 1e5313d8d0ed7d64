package experiments

import (
	"slices"
	"testing"

	"github.com/safedrain/safedrain/test/dataplane/balancers"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// Every round sends enough, and is complete: a title for each experiment, a known balancer, nobody recorded twice.
func TestRounds(t *testing.T) {
	t.Parallel()
	titles := map[string]bool{}
	for _, title := range Titles().Experiments {
		titles[title.Name] = true
	}
	rounds, recorded := map[string]bool{}, map[string]bool{}
	for _, r := range Rounds() {
		if rounds[r.Name] {
			t.Errorf("two rounds are named %s", r.Name)
		}
		rounds[r.Name] = true
		if n := float64(len(r.Subjects)) * r.Rate; n < 200 {
			t.Errorf("%s: %.0f new connections a second, at least 200 are wanted", r.Name, n)
		}
		placed := 0
		for _, n := range r.Placed {
			placed += n
		}
		if r.Placed != nil && (placed != r.replicas() || len(r.Placed) != r.Nodes) {
			t.Errorf("%s: %d pods on %d nodes are placed", r.Name, placed, len(r.Placed))
		}
		if n := len(r.Subjects) * r.Kept; n < 50 {
			t.Errorf("%s: %d kept connections, at least 50 are wanted", r.Name, n)
		}
		for _, s := range r.Subjects {
			if recorded[s.name()] {
				t.Errorf("%s is in two rounds", s.name())
			}
			recorded[s.name()] = true
			if !titles[s.Experiment] || !slices.Contains(balancers.Names, s.Balancer) {
				t.Errorf("%s has no title, or no such balancer", s.name())
			}
			if s.Of != "" && !slices.ContainsFunc(r.Subjects, func(o Subject) bool { return o.name() == s.Of && o.Of == "" }) {
				t.Errorf("%s: no pods of %s in its round", s.name(), s.Of)
			}
		}
	}
}

// The short form has every balancer, both tools and a fault.
func TestShortForm(t *testing.T) {
	t.Parallel()
	seen, faults := map[string]bool{}, 0
	for _, r := range among(Rounds(), func(r *Round) []string { return r.Short }) {
		if r.Fault != nil {
			faults++
			continue
		}
		for _, s := range r.Subjects {
			seen[s.Balancer] = true
		}
	}
	if len(seen) != len(balancers.Names) || faults != 1 {
		t.Errorf("balancers %v, %d faults", seen, faults)
	}
}

func TestMeasured(t *testing.T) {
	t.Parallel()
	round := &Round{Subjects: []Subject{{Experiment: "a", Balancer: "x"}, {Experiment: "b", Balancer: "x"}, {Experiment: "c", Balancer: "y", Spared: true}}}
	runs := func(n, lostA, lostB int) []*results.Record {
		var out []*results.Record
		for i := range n {
			for experiment, lost := range map[string]int{"a": lostA, "b": lostB} {
				r := &results.Record{Key: results.Key{Experiment: experiment, Balancer: "x", Tool: results.Kubectl, Run: i + 1}}
				r.New.Timeout = lost
				out = append(out, r)
			}
			out = append(out, &results.Record{Key: results.Key{Experiment: "c", Balancer: "y", Tool: results.Kubectl, Run: i + 1}})
		}
		return out
	}
	tests := map[string]struct {
		records  []*results.Record
		problems int
		reason   string
	}{
		"both lose":               {runs(5, 1, 1), 0, "each experiment shows losses"},
		"one of many runs":        {runs(5, 1, 0), 1, "with many runs each experiment stands for itself"},
		"one of few":              {runs(1, 1, 0), 0, "with few runs those of a balancer stand together"},
		"none of few":             {runs(1, 0, 0), 2, "nothing was measured"},
		"no run":                  {nil, 0, "nothing was asked"},
		"spared never complained": {runs(5, 1, 1), 0, "kubectl need not lose there"},
	}
	for name, tt := range tests {
		if got := measured(round, tt.records); len(got) != tt.problems {
			t.Errorf("%s: %q, want %d: %s", name, got, tt.problems, tt.reason)
		}
	}
}
