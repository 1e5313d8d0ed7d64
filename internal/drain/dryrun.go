package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// dryRun sends what a run would send, for the server to judge and not to do: the cordon, the label, each eviction once.
// No claim is written and no hook is called.
func (d *run) dryRun(ctx context.Context) error {
	plan, snapshot := d.current()
	for _, name := range d.opts.Nodes {
		node, ok := snapshot.RawNode(name)
		if !ok {
			return fmt.Errorf("node %q not found", name)
		}
		if err := d.dryPatch(ctx, name, needsLabel(plan, name)); err != nil {
			return err
		}
		d.emit(Cordoned{Node: name, Already: node.Spec.Unschedulable})
	}
	held := make([]error, len(plan.Pods))
	var g errgroup.Group
	g.SetLimit(inFlight)
	for i := range plan.Pods {
		p := &plan.Pods[i]
		if p.Action == guard.ActionSkip || p.Action == guard.ActionRefuse {
			continue
		}
		g.Go(func() error {
			held[i] = d.dryRemove(ctx, p)
			return nil
		})
	}
	_ = g.Wait() // every error is in held
	return errors.Join(held...)
}

func (d *run) dryRemove(ctx context.Context, p *guard.PodPlan) error {
	if err := d.stop.Err(); err != nil {
		return err
	}
	a := classify(p, d.remove(ctx, p))
	switch a.kind {
	case answerAccepted, answerGone:
		d.emit(PodEvicted{Node: p.Node, Pod: p.Key(), Deleted: p.Action == guard.ActionDelete})
		return nil
	case answerForbidden:
		return &Denied{What: "evict pod " + p.Key().String(), Cause: errText(a.what)}
	}
	d.emit(PodBlocked{Node: p.Node, Pod: p.Key(), By: a.by})
	return &Unsettled{Node: p.Node, What: fmt.Sprintf("pod %s would be held by %s: %s", p.Key(), a.by, a.what)}
}

func (d *run) dryPatch(ctx context.Context, name string, label bool) error {
	change := map[string]any{"spec": map[string]any{"unschedulable": true}}
	if label {
		change["metadata"] = map[string]any{"labels": map[string]any{lbhooks.ExcludeLabel: "true"}}
	}
	data, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode the patch of node %q: %w", name, err)
	}
	_, err = d.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, data,
		metav1.PatchOptions{FieldManager: claim.FieldManager, DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("cordon node %q: %w", name, err)
	}
	return nil
}

// needsLabel reports whether some Service leaves the node by the label.
func needsLabel(plan *guard.DrainPlan, node string) bool {
	for i := range plan.Services {
		s := &plan.Services[i]
		if s.Balancer.Removal != guard.RemovalLabel || s.Verdict == guard.Safe {
			continue
		}
		for _, r := range s.Nodes {
			if r.Name == node {
				return true
			}
		}
	}
	for i := range plan.Withdraw {
		e := &plan.Withdraw[i]
		if e.Balancer.Removal != guard.RemovalLabel {
			continue
		}
		for _, n := range e.Nodes {
			if n == node {
				return true
			}
		}
	}
	return false
}
