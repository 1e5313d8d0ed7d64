package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

// StaysOut says that a node was uncordoned and could not be put back for some Services: what had to come first, as a pod,
// the node itself, or its kube-proxy, did not come in time.
type StaysOut struct {
	Node   string
	What   []string // "ns/name out of hook: why"
	Failed bool     // a hook failed to put it back
}

func (e *StaysOut) Error() string {
	return fmt.Sprintf("node %q is schedulable, but stays out: %s", e.Node, joined(e.What))
}

// restoring is the uncordon of one node.
type restoring struct {
	*Runner
	opts RestoreOptions
	name string
	held *claim.Held // nil when no claim stands on the node
	stop *stopper
	out  Restored

	proxy       *nodeProxy
	schedulable time.Time            // since when pods may come
	renewed     time.Time            // when a wait of rebalance last showed that this run lives
	done        map[string]bool      // by name in the claim: absences that are dealt with, whether or not the node is back
	how         map[guard.Key]string // why kube-proxy is taken to know the pods of a Service
	heldBack    string               // what a hold still has, and why; "" when nothing
	surged      []string             // replicas that could not be taken back, and why
	hookFailed  bool
}

// Uncordon makes nodes schedulable and undoes what the claims on them say was set, each part once the node can serve:
// where a Service has a pod there, or one is coming, when that is a usable endpoint and the node's kube-proxy knows it;
// without one, at once if the balancer follows the endpoints. A node without a claim is only uncordoned.
func (r *Runner) Uncordon(ctx context.Context, opts RestoreOptions) ([]Restored, *Result) {
	started := r.Clock.Now()
	stop := newStopper()
	d := &run{Runner: r, stop: stop}
	defer d.obeySoft()()
	names := slices.Sorted(slices.Values(unique(opts.Nodes)))
	if err := r.restorable(ctx, names); err != nil {
		return nil, &Result{Outcome: restoreOutcome(err), Err: err, Took: r.Clock.Since(started)}
	}
	// All nodes take pods before any of them is waited for.
	nodes, errs := make([]*restoring, len(names)), make([]error, len(names))
	for i, name := range names {
		nodes[i] = &restoring{Runner: r, opts: opts, name: name, stop: stop, out: Restored{Node: name}}
		errs[i] = nodes[i].begin(ctx)
	}
	var all []Restored
	for i, w := range nodes {
		if errs[i] == nil {
			errs[i] = w.rebalance(ctx)
		}
		if errs[i] == nil {
			errs[i] = w.finish(ctx)
		}
		all = append(all, w.out)
	}
	if opts.Strays {
		errs = append(errs, r.unsurgeStrays(ctx))
	}
	err := errors.Join(errs...)
	res := &Result{Outcome: restoreOutcome(err), Err: err, Took: r.Clock.Since(started)}
	return all, res
}

func restoreOutcome(err error) Outcome {
	var stays *StaysOut
	return outcome(err, errors.As(err, &stays), false)
}

// begin makes the node schedulable, whoever cordoned it: that is what was typed.
func (w *restoring) begin(ctx context.Context) error {
	if err := w.stop.Err(); err != nil {
		return err
	}
	if w.opts.DryRun == DryRunClient || w.opts.DryRun == DryRunServer {
		return w.plain(ctx)
	}
	held, err := w.claimer().Adopt(ctx, w.name)
	if err != nil {
		return err
	}
	if held == nil {
		return w.plain(ctx)
	}
	w.held = held
	if was := held.Was; was.Live() && was.Renewed != nil && w.Clock.Since(*was.Renewed) < claim.DeadAfter {
		w.warn(fmt.Sprintf("run %s of %s was at work on %s; it stops", was.Run, was.Holder, w.name))
	}
	w.unsurge(ctx)
	return w.endOn(ctx, w.uncordon(ctx))
}

// finish undoes the rest of what the claim says was set, when the node can serve.
func (w *restoring) finish(ctx context.Context) error {
	if w.held == nil {
		return nil
	}
	return w.endOn(ctx, w.undoClaim(ctx))
}

// endOn says in the claim that this run is over when it fails: the node may be taken up by the next command at once. If
// even that cannot be written, it waits.
func (w *restoring) endOn(ctx context.Context, err error) error {
	var stays *StaysOut
	if err == nil || errors.As(err, &stays) {
		return err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	return errors.Join(err, w.held.End(ending))
}

func (w *restoring) undoClaim(ctx context.Context) error {
	if err := w.stop.Err(); err != nil {
		return err
	}
	snapshot, err := w.Load(ctx, []string{w.name})
	if err != nil {
		return err
	}
	out := slices.Clone(w.surged)
	if holdsOn(snapshot, w.Hooks, w.name) {
		if w.heldBack, err = w.unholdAll(ctx); err != nil {
			return err
		}
		if w.heldBack != "" {
			out = append(out, w.heldBack)
		}
	}
	stays, err := w.putBack(ctx)
	if err != nil {
		return err
	}
	if out = append(out, stays...); len(out) > 0 {
		return w.staysOut(out)
	}
	return nil
}

func (w *restoring) staysOut(what []string) error {
	w.out.StaysOut = what
	return &StaysOut{Node: w.name, What: what, Failed: w.hookFailed}
}

// plain uncordons a node that has no claim, or shows that it would.
func (w *restoring) plain(ctx context.Context) error {
	node, err := w.Client.CoreV1().Nodes().Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %q: %w", w.name, err)
	}
	already := !node.Spec.Unschedulable
	if !already && w.opts.DryRun != DryRunClient {
		opts := metav1.PatchOptions{FieldManager: claim.FieldManager}
		if w.opts.DryRun == DryRunServer {
			opts.DryRun = []string{metav1.DryRunAll}
		}
		patch := []byte(`{"spec":{"unschedulable":null}}`)
		if _, err := w.Client.CoreV1().Nodes().Patch(ctx, w.name, types.MergePatchType, patch, opts); err != nil {
			return fmt.Errorf("uncordon node %q: %w", w.name, err)
		}
	}
	w.emit(Uncordoned{Node: w.name, Already: already})
	if w.opts.DryRun == DryRunClient || w.opts.DryRun == DryRunServer {
		return nil
	}
	return w.unholdStray(ctx)
}

// uncordon makes the node schedulable. The label stays: what it keeps out waits for more than the node.
func (w *restoring) uncordon(ctx context.Context) error {
	already := !w.held.Node().Spec.Unschedulable
	err := w.held.Update(ctx, func(c *claim.Claim, s *claim.State) {
		s.Cordoned = false
		c.Remove(claim.SetUnschedulable)
	})
	if err != nil {
		return err
	}
	w.schedulable = w.Clock.Now()
	w.emit(Uncordoned{Node: w.name, Already: already})
	return nil
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (r *Runner) timeNow() *time.Time {
	t := r.Clock.Now().UTC().Truncate(time.Second)
	return &t
}

// close clears the claim when everything is undone; else it stays, ended, for the next uncordon.
func (w *restoring) close(ctx context.Context) error {
	if c := w.held.Claim(); len(c.Set) == 0 && w.heldBack == "" {
		return w.held.Clear(ctx)
	}
	return w.held.End(ctx)
}
