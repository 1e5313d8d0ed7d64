package experiments

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/dataplane/balancers"
	"github.com/safedrain/safedrain/test/dataplane/pressure"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// drain runs the tool on a node, and sees meanwhile when each balancer stops sending there.
func (s *scene) drain(ctx context.Context, a *acted, node string) error {
	d := &drained{node: node}
	a.drains = append(a.drains, d)
	a.note("%s drain of %s begins", a.tool, node)
	watching, stop := context.WithCancel(ctx)
	seen := s.seeLeaving(watching, node)
	program, args := s.tools.Kubectl, []string{"drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=" + drainTimeout}
	if a.tool == results.Safedrain {
		program = s.tools.Safedrain
		args = slices.Concat([]string{node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=" + drainTimeout, "-o", "json"}, s.drainFlags())
	}
	var err error
	d.ending, err = call(ctx, s.lab, program, args...)
	if err == nil && a.tool == results.Safedrain {
		if err := pause(ctx, 2*lookInterval); err != nil { // for a look that was under way
			stop()
			return err
		}
	}
	stop()
	d.leaving = seen()
	if err != nil {
		return err
	}
	a.pressure = max(a.pressure, pressure.CPU())
	a.exit = max(a.exit, d.code)
	a.note("%s drain of %s ended with exit code %d", a.tool, node, d.code)
	if d.code != 0 && s.round.Fault == nil {
		s.explain(ctx, a, d.ending)
	}
	if a.tool != results.Safedrain {
		return nil
	}
	d.report = &guard.DrainReport{}
	if err := json.Unmarshal([]byte(d.stdout), d.report); err != nil {
		d.report = nil
		a.problem("the drain left no report: %v", err)
		return nil
	}
	for _, step := range d.report.Steps {
		if step.Service == "" || strings.Contains(step.Name, "surge") {
			a.steps = append(a.steps, results.Step{
				At:   inSeconds(step.Started.Sub(a.begin)),
				What: fmt.Sprintf("safedrain: %s, %s for %.3f s", step.Name, step.Outcome, step.Ended.Sub(step.Started).Seconds()),
			})
		}
	}
	return nil
}

// explain notes a command that failed as a problem, and logs all it said and what MetalLB's status objects are.
func (s *scene) explain(ctx context.Context, a *acted, e *ending) {
	a.problem("%s", e.short())
	s.log("%s", e)
	if status, err := call(ctx, s.lab, s.tools.Kubectl, "get", "servicel2statuses.metallb.io,servicebgpstatuses.metallb.io", "-A", "-o",
		"custom-columns=NAME:.metadata.name,CREATED:.metadata.creationTimestamp,LABELS:.metadata.labels,STATUS:.status"); err == nil && status.code == 0 {
		s.log("%s", status.stdout)
	}
}

// flags are what the ways of the subjects need.
func (s *scene) flags() []string {
	ways := make([]balancers.Way, 0, len(s.subjects))
	for _, w := range s.subjects {
		ways = append(ways, w.way)
	}
	return balancers.Flags(ways...)
}

// drainFlags are the flags of a drain by safedrain.
func (s *scene) drainFlags() []string {
	flags := s.flags()
	for _, w := range s.subjects {
		if w.Hold {
			flags = append(flags, "--hold="+s.namespace+"/"+w.app)
		}
	}
	if s.round.Act == Surge {
		flags = append(flags, "--surge")
	}
	if s.round.Fault != nil {
		flags = append(flags, s.round.Fault.Flags...)
	}
	return flags
}
