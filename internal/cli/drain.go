package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// drainRun is the command drain, which is also the root.
type drainRun struct {
	app    *app
	flags  *DrainFlags
	roll   *RollFlags
	output format
}

func newDrainRun(a *app) *drainRun {
	return &drainRun{app: a, flags: defaultDrainFlags(), roll: defaultRollFlags()}
}

func (r *drainRun) bind(cmd *cobra.Command) {
	r.flags.bind(cmd.Flags())
	r.roll.bind(cmd.Flags())
	cmd.Flags().VarP(&r.output, "output", "o", "Output format: json, yaml, wide or name. json and yaml: a DrainReport.")
}

func (a *app) drainCommand() *cobra.Command {
	r := newDrainRun(a)
	cmd := &cobra.Command{
		Use:   "drain NODE...",
		Short: "Drain nodes: take them out of the load balancers, then evict their pods",
		Long:  rootLong,
		Example: "  " + a.name + " node-3 --ignore-daemonsets\n  " + a.name + " drain -l pool=old --ignore-daemonsets --timeout=20m\n  " +
			a.name + " node-3 --ignore-daemonsets -o json >report.json",
		ValidArgsFunction: a.completeNodes,
		RunE:              r.run,
	}
	r.bind(cmd)
	return cmd
}

func (r *drainRun) run(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && cmd == cmd.Root() && cmd.Flags().NFlag() == 0 {
		return cmd.Help()
	}
	options, warnings, err := r.flags.options(cmd.Flags())
	if err != nil {
		return err
	}
	if err := r.roll.check(cmd.Flags()); err != nil {
		return err
	}
	hooks, err := r.flags.chosen()
	if err != nil {
		return err
	}
	picked, err := chooseNodes(cmd, args, r.flags.Selector, false)
	if err != nil {
		return err
	}
	r.app.warn(warnings...)
	ctx := cmd.Context()
	if options.Nodes, err = picked.live(ctx, r.app.kube); err != nil {
		return err
	}
	e, err := r.app.newEngine(hooks)
	if err != nil {
		return err
	}
	e.pageSize, e.hold = r.flags.pageSize(), options.Flags.Hold
	if r.roll.Rolling {
		return r.rolling(cmd, e, options)
	}
	e.placement.Store(true)
	result := r.app.withProgress(options.DryRun, r.output.document(), func(p progress) *drain.Result {
		return e.runner(p).Drain(ctx, options)
	})
	return r.finish(cmd, e, &options, result)
}

// engine is what runs on a cluster need.
type engine struct {
	app     *app
	clients *cluster.Clients
	hooks   drain.Hooks
	// pageSize and hold are as in cluster.Scope.
	pageSize int64
	hold     []string
	// placement is as in cluster.Scope, of the next load alone: that which a drain is planned by.
	placement atomic.Bool
}

func (a *app) newEngine(chosen choice) (*engine, error) {
	c, err := a.kube.clients()
	if err != nil {
		return nil, err
	}
	return &engine{app: a, clients: c, hooks: newHooks(c, chosen)}, nil
}

func (e *engine) load(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
	return e.loadScope(ctx, cluster.Scope{
		Nodes: nodes, PageSize: e.pageSize, Hold: e.hold, Placement: e.placement.Swap(false),
	})
}

func (e *engine) loadScope(ctx context.Context, scope cluster.Scope) (*cluster.Snapshot, error) {
	snap, err := cluster.Load(ctx, e.clients, e.hooks.Descriptions(), scope)
	if err == nil {
		(&world{snap, e.hooks}).check(ctx, scope.Nodes)
	}
	return snap, err
}

func (e *engine) runner(p progress) *drain.Runner {
	return &drain.Runner{
		Client: e.clients.Kubernetes, Dynamic: e.clients.Dynamic, Hooks: e.hooks, Load: e.load, Places: e.places, Emit: p.emit,
		Clock: clock.RealClock{}, RunID: string(uuid.NewUUID()), Holder: holder(), Soft: e.app.soft,
	}
}

// withProgress shows a run, and says what the first signal means.
func (a *app) withProgress(dryRun drain.DryRun, document bool, run func(progress) *drain.Result) *drain.Result {
	p := a.newProgress(dryRun, document)
	var result *drain.Result
	a.whileNoting(p, func() { result = run(p) })
	p.close()
	return result
}

// whileNoting does something, and says what the first signal means.
func (a *app) whileNoting(p progress, run func()) {
	ended := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-a.soft:
			p.note("stopping: no new evictions; again to leave at once")
		case <-ended:
		}
	}()
	run()
	close(ended)
	<-told
}

// finish prints the end of a run and returns its exit code.
func (r *drainRun) finish(cmd *cobra.Command, e *engine, o *drain.Options, result *drain.Result) error {
	if result.Outcome == drain.Failed && !changed(result) {
		if result.Err == nil {
			return fmt.Errorf("the run failed without a reason")
		}
		return &connectError{r.app.kube, result.Err}
	}
	plan := reportOf(result, o)
	if r.output.document() && result.Outcome != drain.Failed {
		if err := writeDocument(r.app.streams.Out, r.output, plan, drainedNames(result, o)); err != nil {
			return err
		}
	} else if result.Outcome == drain.Done {
		r.printDryRun(&plan.DrainPlan, o.DryRun)
	}
	if _, err := io.WriteString(escaping{r.app.streams.ErrOut}, r.text(cmd, e, o, result)); err != nil {
		return err
	}
	return exitWith(int(result.Outcome))
}

func changed(result *drain.Result) bool {
	return slices.ContainsFunc(result.Nodes, func(n drain.NodeState) bool { return n.Changed() })
}

// reportOf returns the report of a run; a run that ended before its plan leaves an empty one.
func reportOf(result *drain.Result, o *drain.Options) *guard.DrainReport {
	report := result.Report
	if report == nil {
		report = &guard.DrainReport{DrainPlan: guard.DrainPlan{
			Nodes: o.Nodes, Verdict: guard.Safe, Accepted: []string{}, Services: []guard.ServicePlan{},
			Withdraw: []guard.Entry{}, Pods: []guard.PodPlan{}, Findings: []guard.Finding{},
		}}
	}
	report.APIVersion, report.Kind = guard.APIVersion, guard.KindDrainReport
	if report.Steps == nil {
		report.Steps = []guard.Step{}
	}
	return report
}

func drainedNames(result *drain.Result, o *drain.Options) []string {
	if result.Outcome != drain.Done {
		return nil
	}
	return slashed(o.Nodes)
}

// printDryRun prints kubectl's lines of a dry run, as far as no event has said them.
func (r *drainRun) printDryRun(p *guard.DrainPlan, mode drain.DryRun) {
	out, suffix := escaping{r.app.streams.Out}, dryRunSuffix(mode)
	if suffix == "" {
		return
	}
	for _, node := range p.Nodes {
		if mode == drain.DryRunClient {
			fmt.Fprintf(out, "node/%s cordoned%s\n", node, suffix)
			for i := range p.Pods {
				if pod := &p.Pods[i]; pod.Node == node && (pod.Action == guard.ActionEvict || pod.Action == guard.ActionDelete) {
					fmt.Fprintf(out, "evicting pod %s%s\n", pod.Key(), suffix)
				}
			}
		}
		fmt.Fprintf(out, "node/%s drained%s\n", node, suffix)
	}
}

// text is the last words of a run, for stderr.
func (r *drainRun) text(cmd *cobra.Command, e *engine, o *drain.Options, result *drain.Result) string {
	t := typedFlags(r.app.name, cmd.Flags())
	var refusal *drain.Refusal
	if result.Outcome == drain.Refused && errors.As(result.Err, &refusal) {
		v := &planView{
			plan: refusal.Plan, then: refusal.Then, typed: t, wide: r.output == formatWide, hooks: byName(e.hooks),
			settle: o.Settle, hookTimeout: o.HookTimeout, hookTimeoutTyped: o.HookTimeoutTyped,
		}
		var lost *claim.LostTo
		if errors.As(result.Err, &lost) {
			v.then = "nothing changed, " + lost.Winner()
		}
		v.alone = e.alone(cmd.Context(), o, v.plan)
		return "error: " + refusalText(v)
	}
	v := &reportView{result: result, nodes: o.Nodes, typed: t}
	if result.Err != nil {
		v.reason = r.app.explain(result.Err)
	}
	if result.Outcome == drain.Interrupted {
		v.reason = interruptedText(result)
	}
	return reportText(v)
}

func interruptedText(result *drain.Result) string {
	if !changed(result) {
		return "interrupted, nothing changed"
	}
	return "interrupted after " + seconds(result.Took.Round(time.Second))
}

// alone looks once more at the cluster: would each of the refused nodes pass by itself?
func (e *engine) alone(ctx context.Context, o *drain.Options, plan *guard.DrainPlan) []string {
	if len(plan.Nodes) < 2 || ctx.Err() != nil {
		return nil
	}
	snap, err := e.load(ctx, plan.Nodes)
	if err != nil {
		return nil // only the hint is lost
	}
	return (&world{snap, e.hooks}).alone(o, plan)
}
