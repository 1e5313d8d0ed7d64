package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// whatEnded joins what ended nodes, and what stopped the roll where that was no node.
func (d *roll) whatEnded(ctx context.Context) error {
	var all []error
	for _, name := range d.order {
		if n := d.nodes[name]; n.err != nil && !errors.Is(n.err, errStopped) {
			all = append(all, fmt.Errorf("node %q: %w", n.name, n.err))
		}
	}
	switch {
	case d.stop.interrupted(), ctx.Err() != nil:
		all = append([]error{errInterrupted}, all...)
	case len(all) == 0:
		return d.stop.err()
	}
	return errors.Join(all...)
}

// result sums a run up.
func (d *roll) result(err error) *Result {
	if d.state == nil {
		d.state = &state{}
	}
	res := &Result{Err: err, Outcome: d.outcome(err)}
	res.Report = &Report{
		APIVersion: guard.APIVersion, Kind: KindRollReport, Roll: d.state.id, Resumed: d.state.resumed,
		MaxUnavailable: d.opts.AtOnce, Outcome: outcomeNames[res.Outcome], Nodes: d.reports(), Steps: d.parts(),
	}
	if err != nil {
		res.Report.Error = err.Error()
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		res.Report.Refused = refusal.Plans
	}
	for _, name := range d.order {
		n := d.nodes[name]
		if n.done || n.deleted || n.mark == nil && n.was == nil {
			continue
		}
		res.Out = append(res.Out, name)
		if n.drained != nil {
			res.States = append(res.States, n.drained.Nodes...)
		}
	}
	if !d.opts.Uncordon {
		for _, r := range res.Report.Nodes {
			if r.Step == Done && !r.Deleted {
				res.Out = append(res.Out, r.Name)
			}
		}
	}
	slices.Sort(res.Out)
	return res
}

// touched reports whether this roll, in this run or an earlier one, has begun with a node be it that it is undone.
func (d *roll) touched() bool {
	return d.state.resumed || slices.ContainsFunc(d.order, func(name string) bool { return d.nodes[name].begun })
}

// outcome is the worst of all parts.
func (d *roll) outcome(err error) drain.Outcome {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		worst := drain.Done
		for _, part := range joined.Unwrap() {
			if o := d.outcome(part); badness[o] > badness[worst] {
				worst = o
			}
		}
		return worst
	}
	return d.outcomeOf(err)
}

// reports are the nodes of the roll: those done by earlier runs, then those of this one in their order.
func (d *roll) reports() []NodeReport {
	out := []NodeReport{}
	for _, name := range slices.Sorted(keys(d.state.marks)) {
		if d.state.marks[name].Step == Done {
			out = append(out, NodeReport{Name: name, Step: Done, Before: true})
		}
	}
	for _, name := range d.order {
		out = append(out, d.nodes[name].report())
	}
	return out
}

func (n *node) report() NodeReport {
	r := NodeReport{Name: n.name, Step: n.step, Deleted: n.deleted, Command: n.command}
	if n.err != nil {
		r.Error = n.err.Error()
		if n.mark != nil {
			r.Step = n.mark.Step
		}
	}
	if !n.started.IsZero() {
		started := n.started.UTC()
		r.Started = &started
	}
	if !n.ended.IsZero() {
		ended := n.ended.UTC()
		r.Ended = &ended
	}
	if n.drained != nil {
		r.Drain = n.drained.Report
	}
	if n.restored != nil {
		r.Back = &BackReport{Services: []string{}, Warnings: append([]string{}, n.restored.Warnings...), StaysOut: n.restored.StaysOut}
		for _, s := range n.restored.Services {
			if s.Back {
				r.Back.Services = append(r.Back.Services, s.Service)
			}
		}
	}
	return r
}
