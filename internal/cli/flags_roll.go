package cli

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/rolling"
)

// RollFlags are the flags of a drain that take it through many nodes, as they were typed.
type RollFlags struct {
	Rolling        bool
	MaxUnavailable string
	Run            string
	RunTimeout     time.Duration
	Uncordon       bool
	Rebalance      []string
	WaitTimeout    time.Duration
	Unfinished     string
	Plan           bool
}

// defaultRollFlags is the one place where the defaults stand.
func defaultRollFlags() *RollFlags {
	return &RollFlags{MaxUnavailable: "1", RunTimeout: time.Hour, WaitTimeout: defaultUncordonFlags().WaitTimeout}
}

// rollOnly are the flags that mean nothing without --rolling.
var rollOnly = []string{"max-unavailable", "run", "run-timeout", "uncordon", "rebalance", "wait-timeout", "unfinished", "plan"}

func (f *RollFlags) bind(fs *pflag.FlagSet) {
	fs.BoolVar(&f.Rolling, "rolling", f.Rolling, "Take the nodes one after another through drain, --run and --uncordon; the same command goes on after a crash.")
	fs.StringVar(&f.MaxUnavailable, "max-unavailable", f.MaxUnavailable, "With --rolling: how many nodes, or N% of them, may be under way at the same time where they do not depend on each other.")
	fs.StringVar(&f.Run, "run", f.Run, "With --rolling: a command for the shell, run once a node is drained, with its name in NODE. Its failure stops the roll.")
	fs.DurationVar(&f.RunTimeout, "run-timeout", f.RunTimeout, "With --rolling: how long the command may take on one node, zero means for ever.")
	fs.BoolVar(&f.Uncordon, "uncordon", f.Uncordon, "With --rolling: put each node back, and wait until it is, before the next.")
	bindRebalance(fs, &f.Rebalance, "With --rolling --uncordon: as in uncordon.")
	fs.DurationVar(&f.WaitTimeout, "wait-timeout", f.WaitTimeout, "With --rolling: how long to wait until a node is back and every Service of it is covered again.")
	fs.StringVar(&f.Unfinished, "unfinished", f.Unfinished, `With --rolling: what becomes of a roll that another command has left unfinished, "resume" or "restart".`)
	fs.BoolVar(&f.Plan, "plan", f.Plan, "With --rolling: show the order of the nodes and how long it may take, and change nothing.")
}

// bindRebalance adds --rebalance; bare, it takes no value and means all.
func bindRebalance(fs *pflag.FlagSet, value *[]string, usage string) {
	fs.StringSliceVar(value, "rebalance", nil, usage)
	fs.Lookup("rebalance").NoOptDefVal = "all"
}

// checkRebalance finds values that name no Service.
func checkRebalance(services []string) error {
	for _, s := range services {
		if s != "all" && !namespaced(s) {
			return usagef("--rebalance=%s: want namespace/name, or all", s)
		}
	}
	return nil
}

// check finds values that no roll could mean, and flags of a roll where none was asked for.
func (f *RollFlags) check(fs *pflag.FlagSet) error {
	if !f.Rolling {
		for _, name := range rollOnly {
			if fs.Changed(name) {
				return usagef("--%s needs --rolling", name)
			}
		}
		return nil
	}
	switch {
	case f.RunTimeout < 0:
		return usagef("--run-timeout=%s: must not be negative", f.RunTimeout)
	case f.WaitTimeout < 0:
		return usagef("--wait-timeout=%s: must not be negative", f.WaitTimeout)
	case len(f.Rebalance) > 0 && !f.Uncordon:
		return usagef("--rebalance needs --uncordon: a node that stays drained gets no pods")
	case f.Unfinished != "" && f.Unfinished != string(rolling.UnfinishedResume) && f.Unfinished != string(rolling.UnfinishedRestart):
		return usagef("--unfinished=%s: want resume or restart", f.Unfinished)
	case fs.Changed("parallel"):
		return usagef("--parallel is of a drain of all nodes together; with --rolling, --max-unavailable says how many")
	case fs.Changed("deadline"):
		return usagef("--deadline is of nodes that go at one moment; a roll takes them one after another")
	case fs.Changed("run") && strings.TrimSpace(f.Run) == "":
		return usagef("--run is empty")
	}
	if err := checkRebalance(f.Rebalance); err != nil {
		return err
	}
	_, err := f.atOnce(1)
	return err
}

// atOnce is --max-unavailable of so many nodes: percentages are rounded down, and one node always may.
func (f *RollFlags) atOnce(nodes int) (int, error) {
	value := intstr.Parse(f.MaxUnavailable)
	n, err := intstr.GetScaledValueFromIntOrPercent(&value, nodes, false)
	if err != nil || n < 0 || value.Type == intstr.Int && n < 1 {
		return 0, usagef("--max-unavailable=%s: want a number of 1 or more, or N%%", f.MaxUnavailable)
	}
	return max(1, n), nil
}

// options are those of the roll of some nodes that were chosen as typed.
func (f *RollFlags) options(d drain.Options, nodes []string, selection string) (rolling.Options, error) {
	atOnce, err := f.atOnce(len(nodes))
	d.Parallel, d.Flags.Together = false, false
	return rolling.Options{
		Nodes: nodes, Selection: selection, Drain: d, AtOnce: atOnce, Command: f.Run, RunTimeout: f.RunTimeout,
		Uncordon: f.Uncordon, Rebalance: sorted(f.Rebalance), WaitTimeout: f.WaitTimeout, Unfinished: rolling.Unfinished(f.Unfinished),
	}, err
}
