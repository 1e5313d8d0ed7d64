package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// planRun is the command plan: its flags and what they become.
type planRun struct {
	app    *app
	flags  *DrainFlags
	source SourceFlags
	output format
	each   bool
	scale  string
}

func (a *app) planCommand() *cobra.Command {
	r := &planRun{app: a, flags: defaultDrainFlags()}
	cmd := &cobra.Command{
		Use:   "plan NODE...",
		Short: "Say what a drain, or a scaling, would do, and change nothing",
		Long: "Say what a drain of these nodes would do, together, and change nothing. Takes the flags of a drain.\n" +
			"Exit 0: would be done. Exit 3: would be refused, with every reason and what accepts or mends it.",
		Example: "  " + a.name + " plan node-3 --ignore-daemonsets\n  " + a.name + " plan --each --ignore-daemonsets\n  " +
			a.name + " plan -n shop --scale deploy/checkout=2\n  " +
			"kubectl get nodes,svc,endpointslices,pods,pdb,daemonsets -A -o yaml | " + a.name + " plan -f - node-3",
		ValidArgsFunction: a.completeNodes,
		RunE:              r.run,
	}
	r.flags.bind(cmd.Flags())
	r.source.bind(cmd.Flags())
	cmd.Flags().VarP(&r.output, "output", "o", "Output format: json, yaml, wide or name.")
	cmd.Flags().StringVar(&r.scale, "scale", "", "Judge a change of a workload's replicas instead of a drain, kind/name=replicas: which pods go, which nodes lose their last endpoint, the floor.")
	cmd.Flags().BoolVar(&r.each, "each", false, "Judge each node by itself, a line a node; all nodes when none is named.")
	return cmd
}

func (r *planRun) run(cmd *cobra.Command, args []string) error {
	ctx, stop := r.app.interruptible(cmd.Context())
	defer stop()
	if r.scale != "" || cmd.Flags().Changed("scale") {
		return r.runScale(ctx, cmd, args)
	}
	options, warnings, err := r.flags.options(cmd.Flags())
	if err != nil {
		return err
	}
	if err := r.source.check(); err != nil {
		return err
	}
	picked, err := chooseNodes(cmd, args, r.flags.Selector, r.each)
	if err != nil {
		return err
	}
	r.app.warn(warnings...)
	w, nodes, err := r.world(ctx, &picked)
	if err != nil {
		return err
	}
	options.Nodes = nodes
	if r.each {
		return r.printEach(cmd, w, &options)
	}
	return r.printPlan(cmd, w, &options)
}

// world loads what is judged, and resolves the names in it.
func (r *planRun) world(ctx context.Context, picked *chosen) (*world, []string, error) {
	hooks, err := r.flags.chosen()
	if err != nil {
		return nil, nil, err
	}
	scope := cluster.Scope{Nodes: picked.names, AllPods: picked.every, PageSize: r.flags.pageSize(), Hold: sorted(r.flags.Hold), Placement: true}
	if !r.source.offline() && !picked.every {
		if scope.Nodes, err = picked.live(ctx, r.app.kube); err != nil {
			return nil, nil, err
		}
	}
	w, err := r.app.load(ctx, &r.source, hooks, scope)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := picked.resolve(w.snap)
	if err == nil {
		w.check(ctx, nodes)
	}
	return w, nodes, err
}

// request is what guard is asked about some nodes.
func request(o *drain.Options, nodes ...string) guard.Request {
	req := guard.Request{Nodes: nodes, StayUp: o.StayUp, Flags: o.Flags}
	if o.PodSelector != nil {
		req.SkipPod = func(of map[string]string) bool { return !o.PodSelector.Matches(labels.Set(of)) }
	}
	return req
}

// judge plans the drain of some nodes in a world; places is where pods can be placed, nil for nothing about that.
func (w *world) judge(o *drain.Options, places *placement.Cluster, nodes ...string) guard.DrainPlan {
	req := request(o, nodes...)
	req.Cluster = places
	return guard.Plan(w.snap.Index(w.hooks, nodes), req)
}

func (r *planRun) printPlan(cmd *cobra.Command, w *world, o *drain.Options) error {
	judged := w.judge(o, w.snap.Placement(), o.Nodes...)
	plan, err := r.app.surged(cmd.Context(), w, &r.source, o, &judged)
	if err != nil {
		return err
	}
	if note := w.snap.PlacementNote(); note != "" {
		r.app.warn(note)
	}
	out := r.app.streams.Out
	if r.output.document() {
		if err := writeDocument(out, r.output, plan, drainable(plan)); err != nil {
			return err
		}
		return exitWith(planCode(plan))
	}
	v := r.app.planView(cmd, w, o, plan)
	v.wide = r.output == formatWide
	if _, err := io.WriteString(escaping{out}, planText(v)); err != nil {
		return err
	}
	return exitWith(planCode(plan))
}

// planView gathers what the text of a plan needs.
func (a *app) planView(cmd *cobra.Command, w *world, o *drain.Options, plan *guard.DrainPlan) *planView {
	return &planView{
		plan: plan, typed: typedFlags(a.name, cmd.Flags()), hooks: w.descriptions(),
		settle: o.Settle, hookTimeout: o.HookTimeout, hookTimeoutTyped: o.HookTimeoutTyped, alone: w.alone(o, plan),
	}
}

// alone returns the nodes of a refused plan if a drain of each by itself would not be refused.
func (w *world) alone(o *drain.Options, plan *guard.DrainPlan) []string {
	if !plan.Refused() || len(plan.Nodes) < 2 {
		return nil
	}
	for _, n := range plan.Nodes {
		if p := w.judge(o, nil, n); p.Refused() {
			return nil
		}
	}
	return plan.Nodes
}

func planCode(p *guard.DrainPlan) int {
	if p.Refused() {
		return int(drain.Refused)
	}
	return 0
}

// drainable is what -o name prints of a plan: the nodes, if they can be drained.
func drainable(p *guard.DrainPlan) []string {
	if p.Refused() {
		return nil
	}
	return slashed(p.Nodes)
}
