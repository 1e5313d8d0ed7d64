package experiments

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/balancers"
	"github.com/safedrain/safedrain/test/dataplane/pressure"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// What is measured is said by the environment, since it takes minutes or an hour and needs root.
const (
	// envForm is "short" or "full".
	envForm = "DATAPLANE"
	// envResults is the directory of the records, which are not measured again; a new one when empty.
	envResults = "DATAPLANE_RESULTS"
	// envRuns is how often each round is carried out in the full form; faultRuns for those with a fault.
	envRuns = "DATAPLANE_RUNS"
	// envRounds, envBalancers and envModes, separated by commas, choose among the rounds, balancers and modes of kube-proxy.
	envRounds    = "DATAPLANE_ROUNDS"
	envBalancers = "DATAPLANE_BALANCERS"
	envModes     = "DATAPLANE_MODES"
)

const (
	fullRuns  = 5
	faultRuns = 1
	attempts  = 3 // at a run that is discarded
)

// campaign is one call of the test.
type campaign struct {
	full   bool
	store  *results.Store
	rounds []Round
	modes  []string
	runs   int
	tools  *Tools
	dir    string
}

func newCampaign(t *testing.T) *campaign {
	t.Helper()
	form := os.Getenv(envForm)
	switch {
	case form == "":
		t.Skipf("experiments take minutes: `make dataplane` runs them, or %s=short", envForm)
	case form != "short" && form != "full":
		t.Fatalf("%s=%s: short or full", envForm, form)
	}
	if err := balancers.Requirements(balancers.Names...); err != nil {
		t.Fatal(err)
	}
	c := &campaign{full: form == "full", runs: 1, modes: []string{dataplane.NFTables}, dir: t.TempDir(), rounds: Rounds()}
	if c.full {
		c.runs, c.modes = fullRuns, []string{dataplane.NFTables, dataplane.IPTables}
	} else {
		c.rounds = among(c.rounds, func(r *Round) []string { return r.Short })
		for i := range c.rounds {
			if tools := c.rounds[i].ShortTools; len(tools) > 0 {
				c.rounds[i].Tools = tools
			}
		}
	}
	if n, err := strconv.Atoi(os.Getenv(envRuns)); err == nil && n > 0 {
		c.runs = n
	}
	if names := os.Getenv(envModes); names != "" {
		c.modes = strings.Split(names, ",")
	}
	if names := os.Getenv(envRounds); names != "" {
		c.rounds = slices.DeleteFunc(c.rounds, func(r Round) bool { return !slices.Contains(strings.Split(names, ","), r.Name) })
	}
	if names := os.Getenv(envBalancers); names != "" {
		c.rounds = among(c.rounds, func(*Round) []string { return strings.Split(names, ",") })
	}
	dir := os.Getenv(envResults)
	if dir == "" {
		dir = filepath.Join(c.dir, "results")
	}
	var err error
	if c.store, err = results.Open(dir); err != nil {
		t.Fatal(err)
	}
	return c
}

// among keeps the subjects behind some balancers, and the rounds that have any.
func among(rounds []Round, names func(*Round) []string) []Round {
	var out []Round
	for _, r := range rounds {
		r.Subjects = slices.DeleteFunc(slices.Clone(r.Subjects), func(s Subject) bool { return !slices.Contains(names(&r), s.Balancer) })
		if len(r.Subjects) > 0 {
			out = append(out, r)
		}
	}
	return out
}

// TestExperiments carries out every round, in each mode of kube-proxy.
func TestExperiments(t *testing.T) {
	c := newCampaign(t)
	tools := func(programs *controlplane.Programs) (*Tools, error) {
		var err error
		if c.tools == nil {
			c.tools, err = FindTools(t.Context(), programs.Kubectl, c.dir)
		}
		return c.tools, err
	}
	for _, o := range c.labs() {
		t.Run(fmt.Sprintf("%s/%d-nodes", o.ProxyMode, o.Nodes), func(t *testing.T) {
			rounds := slices.DeleteFunc(slices.Clone(c.rounds), func(r Round) bool { return r.machines() != o.Nodes })
			if c.tools != nil && !c.open(rounds, o.ProxyMode) {
				return
			}
			on, err := newStage(t.Context(), o, balancersOf(rounds), tools)
			if err != nil {
				t.Fatal(err)
			}
			on.log, on.short = t.Logf, !c.full
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(on.lab.Logs())
				}
				if err := on.close(context.Background()); err != nil { // the test's own context has ended
					t.Error(err)
				}
			})
			for i := range rounds {
				t.Run(rounds[i].Name, func(t *testing.T) { c.round(t, on, &rounds[i]) })
			}
		})
	}
}

// labs are the clusters that the rounds need, in each mode of kube-proxy.
func (c *campaign) labs() []dataplane.Options {
	var sizes []int
	for i := range c.rounds {
		sizes = append(sizes, c.rounds[i].machines())
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	var out []dataplane.Options
	for _, mode := range c.modes {
		for _, size := range sizes {
			out = append(out, dataplane.Options{Nodes: size, ProxyMode: mode})
		}
	}
	return out
}

// balancersOf are the names of those that rounds need.
func balancersOf(rounds []Round) []string {
	var names []string
	for _, r := range rounds {
		for _, s := range r.Subjects {
			names = append(names, s.Balancer)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// open reports whether anything of rounds is left to measure in a mode.
func (c *campaign) open(rounds []Round, mode string) bool {
	return slices.ContainsFunc(rounds, func(r Round) bool { return len(c.missing(&r, mode)) > 0 })
}

// missing lists the turns of a round that are not recorded for this build of safedrain.
func (c *campaign) missing(r *Round, mode string) []turn {
	tools, runs := []string{results.Kubectl, results.Safedrain}, c.runs
	if len(r.Tools) > 0 {
		tools = r.Tools
	}
	if r.Fault != nil {
		tools, runs = []string{results.Safedrain}, min(c.runs, faultRuns)
	}
	if r.Runs > 0 {
		runs = min(runs, r.Runs)
	}
	var out []turn
	for number := 1; number <= runs; number++ {
		for _, tool := range tools {
			recorded := func(s Subject) bool {
				return c.store.Has(results.Key{Experiment: s.Experiment, Balancer: s.Balancer, Mode: mode, Tool: tool, Run: number}, c.tools.Build)
			}
			if slices.ContainsFunc(r.Subjects, func(s Subject) bool { return !recorded(s) }) {
				out = append(out, turn{tool, number})
			}
		}
	}
	return out
}

// round carries a round out as often as is missing, and records each run at once.
func (c *campaign) round(t *testing.T, on *stage, r *Round) {
	turns := c.missing(r, on.lab.ProxyMode)
	if len(turns) == 0 {
		t.Log("all runs are recorded")
	} else {
		s, err := newScene(t.Context(), on, r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.remove(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}()
		for _, turn := range turns {
			c.turn(t, s, turn)
		}
	}
	c.judge(t, r, on.lab.ProxyMode)
}

// turn makes one run, again if it is discarded. On a machine that is too busy to measure anything it is left out.
func (c *campaign) turn(t *testing.T, s *scene, turn turn) {
	t.Helper()
	began := time.Now()
	for attempt := 1; ; attempt++ {
		records, err := s.run(t.Context(), turn, attempt == attempts)
		if errors.Is(err, errDiscard) && attempt < attempts {
			t.Logf("!!! %s run %d, attempt %d: %v", turn.tool, turn.number, attempt, err)
			continue
		}
		if errors.Is(err, errDiscard) && pressure.Busy() {
			t.Logf("!!! %s run %d: NOT MEASURED, something waits for a processor %.0f %% of the time: %v", turn.tool, turn.number, pressure.CPU(), err)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			t.Logf("%s: %d of %d new connections failed, %d were cut, %d kept ones broke (%s)", r.Key, r.Failed(), r.New.Scheduled, r.New.Cut, r.Broken,
				time.Since(began).Round(time.Second))
		}
		if err := errors.Join(c.store.Put(records...), results.Write(c.store, Titles())); err != nil {
			t.Fatal(err)
		}
		return
	}
}

// judge fails the test for every problem that the records of a round show.
func (c *campaign) judge(t *testing.T, r *Round, mode string) {
	t.Helper()
	var records []*results.Record
	for _, record := range c.store.Records() {
		of := func(s Subject) bool { return s.Experiment == record.Experiment && s.Balancer == record.Balancer }
		if record.Mode == mode && record.Build == c.tools.Build && slices.ContainsFunc(r.Subjects, of) {
			records = append(records, record)
		}
	}
	said := map[string]bool{} // of a run, all Services have the same to say
	for _, record := range records {
		for _, problem := range record.Problems {
			if text := fmt.Sprintf("run %d of %s: %s", record.Run, record.Tool, problem); !said[text] {
				said[text] = true
				t.Errorf("%s: %s", record.Key, problem)
			}
		}
	}
	for _, problem := range measured(r, records) {
		t.Error(problem)
	}
}
