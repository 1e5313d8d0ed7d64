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
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// restorePoll is the time between two looks at pods that are coming.
const restorePoll = 2 * time.Second

// StaysOut says that a node was uncordoned and could not be put back for some Services: pods that were coming did not
// become Ready in time, or the node did not.
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

	stays      string // what is still held, and why; "" when nothing is
	hookFailed bool
}

// Uncordon makes nodes schedulable and undoes what the claims on them say was set: the label as soon as the node is
// Ready, a hook's withdrawal at once where the balancer follows the endpoints, else once a usable endpoint is there. Only
// pods that are coming are waited for. A node without a claim is only uncordoned.
func (r *Runner) Uncordon(ctx context.Context, opts RestoreOptions) ([]Restored, *Result) {
	started := r.Clock.Now()
	stop := newStopper()
	d := &run{Runner: r, stop: stop}
	defer d.obeySoft()()
	names := slices.Sorted(slices.Values(unique(opts.Nodes)))
	if err := r.restorable(ctx, names); err != nil {
		return nil, &Result{Outcome: restoreOutcome(err), Err: err, Took: r.Clock.Since(started)}
	}
	var all []Restored
	var errs []error
	for _, name := range names {
		w := &restoring{Runner: r, opts: opts, name: name, stop: stop, out: Restored{Node: name}}
		if err := w.restore(ctx); err != nil {
			errs = append(errs, err)
		}
		all = append(all, w.out)
	}
	err := errors.Join(errs...)
	res := &Result{Outcome: restoreOutcome(err), Err: err, Took: r.Clock.Since(started)}
	return all, res
}

func restoreOutcome(err error) Outcome {
	var stays *StaysOut
	return outcome(err, errors.As(err, &stays), false)
}

func (w *restoring) restore(ctx context.Context) error {
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
	if err := w.withClaim(ctx); err != nil {
		var stays *StaysOut
		if !errors.As(err, &stays) {
			// The node may be taken up by the next command at once; if even that cannot be written, it waits.
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
			defer cancel()
			err = errors.Join(err, held.End(ending))
		}
		return err
	}
	return nil
}

// withClaim uncordons, and undoes what the claim says was set.
func (w *restoring) withClaim(ctx context.Context) error {
	if was := w.held.Was; was.Live() && was.Renewed != nil && w.Clock.Since(*was.Renewed) < claim.DeadAfter {
		w.warn(fmt.Sprintf("run %s of %s was at work on %s; it stops", was.Run, was.Holder, w.name))
	}
	if err := w.uncordon(ctx); err != nil {
		return err
	}
	snapshot, err := w.Load(ctx, []string{w.name})
	if err != nil {
		return err
	}
	var out []string
	if holdsOn(snapshot, w.Hooks, w.name) {
		if w.stays, err = w.unholdAll(ctx); err != nil {
			return err
		}
		if w.stays != "" {
			out = append(out, w.stays)
		}
	}
	stays, err := w.putBack(ctx, snapshot)
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

// uncordon makes the node schedulable whoever cordoned it: that is what was typed. Where the node is Ready, the label
// goes in the same patch.
func (w *restoring) uncordon(ctx context.Context) error {
	already := !w.held.Node().Spec.Unschedulable
	ready := nodeReady(w.held.Node())
	err := w.held.Update(ctx, func(c *claim.Claim, s *claim.State) {
		s.Cordoned = false
		c.Remove(claim.SetUnschedulable)
		if ready {
			claim.Include(c, s)
		}
	})
	if err != nil {
		return err
	}
	w.emit(Uncordoned{Node: w.name, Already: already})
	return nil
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// putBack does what is left after the uncordon, and clears the claim when nothing is.
func (w *restoring) putBack(ctx context.Context, snapshot *cluster.Snapshot) ([]string, error) {
	deadline := newStopper()
	defer deadline.follow(w.stop)()
	defer deadline.after(w.Clock, max(w.opts.WaitTimeout, time.Millisecond), errWaited)()
	var out []string
	if err := w.label(ctx, deadline); err != nil {
		if !errors.Is(err, errWaited) {
			return nil, err
		}
		out = append(out, "labelled "+lbhooks.ExcludeLabel+": the node is not Ready")
	}
	c := w.held.Claim()
	for _, set := range c.Set {
		hook, service, ok := claim.ParseHookSet(set)
		if !ok {
			continue
		}
		why, err := w.hook(ctx, deadline, set, hook, service)
		if err != nil {
			return nil, err
		}
		if why != "" {
			out = append(out, why)
		}
	}
	w.report(&c, snapshot)
	return out, w.close(ctx)
}

var errWaited = errors.New("waited long enough")

// label removes the label once the node is Ready.
func (w *restoring) label(ctx context.Context, deadline *stopper) error {
	for {
		c := w.held.Claim()
		if !c.Has(claim.SetLabel) {
			return nil
		}
		if nodeReady(w.held.Node()) {
			return w.held.Update(ctx, claim.Include)
		}
		if err := deadline.pause(ctx, w.Clock, restorePoll); err != nil {
			return err
		}
		if err := w.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Renewed = w.timeNow() }); err != nil {
			return err
		}
	}
}

func (r *Runner) timeNow() *time.Time {
	t := r.Clock.Now().UTC().Truncate(time.Second)
	return &t
}

// close clears the claim when everything is undone; else it stays, ended, for the next uncordon.
func (w *restoring) close(ctx context.Context) error {
	if c := w.held.Claim(); len(c.Set) == 0 && w.stays == "" {
		return w.held.Clear(ctx)
	}
	return w.held.End(ctx)
}

// Ours lists the nodes that bear a claim of this tool, sorted.
func (r *Runner) Ours(ctx context.Context) ([]string, error) { return r.claimed(ctx, false) }

// Forgotten lists the nodes that bear a claim and take pods again: capacity that was withdrawn and never given back.
func (r *Runner) Forgotten(ctx context.Context) ([]string, error) { return r.claimed(ctx, true) }

func (r *Runner) claimed(ctx context.Context, schedulable bool) ([]string, error) {
	var names []string
	opts := metav1.ListOptions{Limit: podPage}
	for {
		page, err := r.Client.CoreV1().Nodes().List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for i := range page.Items {
			n := &page.Items[i]
			if _, ok := n.Annotations[claim.Annotation]; ok && (!schedulable || !n.Spec.Unschedulable) {
				names = append(names, n.Name)
			}
		}
		if page.Continue == "" {
			slices.Sort(names)
			return names, nil
		}
		opts.Continue = page.Continue
	}
}
