package experiments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/rolling"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane/pressure"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// Upset is what goes wrong with a roll, at its third node.
type Upset string

// The upsets.
const (
	Undisturbed Upset = ""
	// Killed ends safedrain by SIGKILL; the same command goes on.
	Killed Upset = "killed"
	// CommandFails has the command fail once; a mended one goes on.
	CommandFails Upset = "failing"
)

// upsetAt is the turn at which a roll is upset.
const upsetAt = 3

// commandFailed is the exit code of a command that fails on purpose, and unfinished that of the roll that it stops.
const (
	commandFailed = 7
	unfinished    = 4
)

// killMoments are when a roll is killed, another one in each run.
var killMoments = []struct {
	name string
	due  func(mark *rolling.Mark, claimed string) bool
}{
	{"has withdrawn it", func(m *rolling.Mark, claimed string) bool {
		return m.Step == rolling.Draining && strings.Contains(claimed, `"withdrawn"`)
	}},
	{"runs the command", func(m *rolling.Mark, _ string) bool { return m.Step == rolling.Running }},
	{"puts it back", func(m *rolling.Mark, _ string) bool { return m.Step == rolling.Returning }},
}

// maintain takes every node through a maintenance: kubectl in a loop, safedrain by one command, which may be upset.
func (s *scene) maintain(ctx context.Context, a *acted, number int) error {
	if a.tool == results.Kubectl {
		return s.drainAll(ctx, a)
	}
	r := &roll{scene: s, acted: a, calls: filepath.Join(s.lab.Dir, "calls")}
	if err := os.Remove(r.calls); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var err error
	switch s.round.Upset {
	case Killed:
		err = r.killed(ctx, number)
	case CommandFails:
		err = r.fails(ctx)
	default:
		err = r.run(ctx, r.command(), 0)
	}
	if err != nil {
		return err
	}
	if err := pause(ctx, s.round.Watch); err != nil {
		return err
	}
	a.pressure = max(a.pressure, pressure.CPU())
	return r.over(ctx)
}

// roll is a maintenance of all nodes by `safedrain --rolling`.
type roll struct {
	*scene
	*acted
	calls string // a file to which the command adds the name of its node
}

// command is the maintenance of a node.
func (r *roll) command() string {
	return fmt.Sprintf("sleep %g; echo $NODE >>%s", r.round.Work.Seconds(), r.calls)
}

func (r *roll) args(command string, more ...string) []string {
	args := []string{
		"-l", corev1.LabelHostname, "--rolling", "--uncordon", "--run=" + command, "--ignore-daemonsets", "--delete-emptydir-data",
		"--timeout=" + drainTimeout, "--wait-timeout=60s", "-o", "json",
	}
	return slices.Concat(args, r.flags(), more)
}

// run carries a command of safedrain out, which has to end with an exit code.
func (r *roll) run(ctx context.Context, command string, code int, more ...string) error {
	r.note("safedrain --rolling begins")
	e, err := call(ctx, r.lab, r.tools.Safedrain, r.args(command, more...)...)
	if err != nil {
		return err
	}
	r.note("safedrain --rolling ended with exit code %d", e.code)
	r.exit = max(r.exit, e.code)
	if e.code != code {
		r.explain(ctx, r.acted, e)
	}
	return r.told(e)
}

// told notes what the report says of each node.
func (r *roll) told(e *ending) error {
	var report rolling.Report
	if err := json.Unmarshal([]byte(e.stdout), &report); err != nil {
		r.problem("the roll left no report: %v", err)
		return nil
	}
	for _, n := range report.Nodes {
		if n.Started == nil || n.Ended == nil {
			continue
		}
		r.steps = append(r.steps, results.Step{
			At: inSeconds(n.Started.Sub(r.begin)), What: fmt.Sprintf("safedrain: %s %s after %.3f s", n.Name, n.Step, n.Ended.Sub(*n.Started).Seconds()),
		})
	}
	return nil
}

// killed kills a roll at its moment, and gives the same command again.
func (r *roll) killed(ctx context.Context, number int) error {
	moment := killMoments[(number-1)%len(killMoments)]
	running, kill := context.WithCancel(ctx)
	defer kill()
	r.note("safedrain --rolling begins")
	go func() {
		at := until(running, lookInterval, func(ctx context.Context) (bool, error) {
			marks, claims, err := r.marks(ctx)
			if err != nil || done(marks) != upsetAt-1 {
				return false, err
			}
			for name, m := range marks {
				if moment.due(m, claims[name]) {
					return true, nil
				}
			}
			return false, nil
		})
		if !at.IsZero() {
			r.note("killed, as it %s", moment.name)
			kill()
		}
	}()
	e, err := call(running, r.lab, r.tools.Safedrain, r.args(r.command())...)
	if err != nil {
		return err
	}
	if running.Err() == nil {
		r.explain(ctx, r.acted, e)
		return fmt.Errorf("%w: the roll ended before it was killed", errDiscard)
	}
	return r.run(ctx, r.command(), 0)
}

// fails runs a command that fails on its third node, checks what that leaves, and goes on with one that does not.
func (r *roll) fails(ctx context.Context) error {
	failing := fmt.Sprintf("%s; test $(wc -l <%s) -ne %d || exit %d", r.command(), r.calls, upsetAt, commandFailed)
	if err := r.run(ctx, failing, unfinished); err != nil {
		return err
	}
	marks, _, err := r.marks(ctx)
	if err != nil {
		return err
	}
	failed := ""
	for name, m := range marks {
		if m.Step == rolling.Failed {
			failed = name
		}
	}
	if failed == "" || done(marks) != upsetAt-1 || len(marks) != upsetAt {
		r.problem("the roll did not stop at its third node: %v", slices.Sorted(maps.Keys(marks)))
	}
	if err := r.without(ctx, failed); err != nil {
		r.problem("%v", err)
	}
	if err := pause(ctx, afterReturn); err != nil {
		return err
	}
	return r.run(ctx, r.command(), 0, "--unfinished="+string(rolling.UnfinishedResume))
}

// marks are those of the roll, and the claims, by node.
func (r *roll) marks(ctx context.Context) (marks map[string]*rolling.Mark, claims map[string]string, err error) {
	nodes, err := r.lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	marks, claims = map[string]*rolling.Mark{}, map[string]string{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		claims[n.Name] = n.Annotations[claim.Annotation]
		if text, ok := n.Annotations[rolling.Annotation]; ok {
			m := &rolling.Mark{}
			if err := json.Unmarshal([]byte(text), m); err != nil {
				return nil, nil, fmt.Errorf("the mark on %s: %w", n.Name, err)
			}
			marks[n.Name] = m
		}
	}
	return marks, claims, nil
}

// done counts the nodes that a roll is done with.
func done(marks map[string]*rolling.Mark) int {
	n := 0
	for _, m := range marks {
		if m.Step == rolling.Done {
			n++
		}
	}
	return n
}

// without waits until every node but one is in rotation and has a pod of each workload, and that one is neither.
func (r *roll) without(ctx context.Context, failed string) error {
	return controlplane.Poll(ctx, coveredWithin, "every Service on all nodes but "+failed, func(ctx context.Context) (bool, string, error) {
		for _, w := range r.subjects {
			shown, err := w.balancer.Shown(ctx, w.svc)
			if err != nil {
				return false, w.name(), err
			}
			served, err := r.served(ctx, w)
			want := len(r.lab.Nodes) - 1
			if err != nil || slices.Contains(served, failed) || len(served) != want ||
				slices.Contains(shown, failed) || len(shown) != want && !w.traits.OneNode {
				return false, fmt.Sprintf("%s: served by %v, sent to %v", w.name(), served, shown), err
			}
		}
		return true, "", nil
	})
}

// coveredWithin is how long balancers may take to find out that a node is back: HAProxy's check twice, and some.
const coveredWithin = 20 * time.Second

// over checks that the command was run on every node, once where nothing went wrong, and that nothing is left of the roll.
func (r *roll) over(ctx context.Context) error {
	text, err := os.ReadFile(r.calls)
	if err != nil {
		return err
	}
	calls := strings.Fields(string(text))
	r.note("maintained in this order: %s", strings.Join(calls, " "))
	slices.Sort(calls)
	if nodes := slices.Compact(slices.Clone(calls)); len(nodes) != len(r.lab.Nodes) || r.round.Upset == Undisturbed && len(calls) != len(nodes) {
		r.problem("the command was run on %v", calls)
	}
	nodes, err := r.lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	marks, _, err := r.marks(ctx)
	if err != nil {
		return err
	}
	// Another command than the one that began a roll leaves its marks, which mean nothing once all nodes are done.
	if r.round.Upset == CommandFails && done(marks) == len(nodes.Items) {
		clear(marks)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		_, claimed := n.Annotations[claim.Annotation]
		_, marked := marks[n.Name]
		label := n.Labels[corev1.LabelNodeExcludeBalancers]
		if n.Spec.Unschedulable || claimed || marked || label != "" {
			r.problem("%s is left changed: unschedulable %t, claimed %t, marked %t, label %q", n.Name, n.Spec.Unschedulable, claimed, marked, label)
		}
	}
	if err := r.inRotation(ctx); err != nil {
		r.problem("%v", err)
	}
	return nil
}
