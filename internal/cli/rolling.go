package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/rolling"
)

// rolling is the command drain with --rolling.
func (r *drainRun) rolling(cmd *cobra.Command, e *engine, o drain.Options) error {
	selection := strings.Join(o.Nodes, ",")
	if r.flags.Selector != "" {
		selection = "-l " + r.flags.Selector
	}
	options, err := r.roll.options(o, o.Nodes, selection)
	if err != nil {
		return err
	}
	if o.DryRun == drain.DryRunServer {
		return usagef("--dry-run=server is of one drain; a roll is planned with --plan")
	}
	v := &rollView{options: &options, typed: typedFlags(r.app.name, cmd.Flags()), hooks: byName(e.hooks), selected: r.flags.Selector != ""}
	if r.roll.Plan || o.DryRun == drain.DryRunClient {
		return r.planRoll(cmd.Context(), e, v)
	}
	p := r.app.newRollProgress(r.output.document())
	var result *rolling.Result
	r.app.whileNoting(p, func() {
		runner := e.runner(p)
		roller := &rolling.Roller{
			Runner: runner, Progress: p.moved, Environ: os.Environ(),
			NewID: func() string { return string(uuid.NewUUID()) },
		}
		result = roller.Roll(cmd.Context(), options)
	})
	p.close()
	return r.finishRoll(v, result)
}

// places reads what a plan reads: where pods can run, too.
func (e *engine) places(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
	return e.loadScope(ctx, cluster.Scope{Nodes: nodes, PageSize: e.pageSize, Hold: e.hold, Placement: true})
}

// planRoll shows the order of the nodes.
func (r *drainRun) planRoll(ctx context.Context, e *engine, v *rollView) error {
	ctx, stop := r.app.interruptible(ctx)
	defer stop()
	roller := &rolling.Roller{Runner: &drain.Runner{Hooks: e.hooks, Load: e.load, Places: e.places}}
	outlook, err := roller.Outlook(ctx, v.options, v.options.Nodes)
	if err != nil {
		return &connectError{r.app.kube, err}
	}
	return r.app.printRollPlan(v, outlook, r.output)
}

// printRollPlan prints the outlook of a roll: exit code 3 where guard refuses one of its nodes.
func (a *app) printRollPlan(v *rollView, outlook *rolling.Outlook, output format) error {
	v.outlook = outlook
	plan := v.plan()
	code := 0
	for i := range plan.Nodes {
		code = max(code, planCode(&plan.Nodes[i].Plan))
	}
	out := a.streams.Out
	if output.document() {
		if err := writeDocument(out, output, plan, slashed(outlook.Names())); err != nil {
			return err
		}
	} else if _, err := io.WriteString(escaping{out}, v.planText(plan, output == formatWide)); err != nil {
		return err
	}
	return exitWith(code)
}

// finishRoll prints the end of a roll and returns its exit code.
func (r *drainRun) finishRoll(v *rollView, result *rolling.Result) error {
	if result.Outcome == drain.Failed {
		if result.Err == nil {
			return fmt.Errorf("the roll failed without a reason")
		}
		return &connectError{r.app.kube, result.Err}
	}
	if r.output.document() {
		if err := writeDocument(r.app.streams.Out, r.output, result.Report, rolledNames(result)); err != nil {
			return err
		}
	}
	v.result = result
	if result.Err != nil {
		v.reason = r.app.explain(result.Err)
	}
	if _, err := io.WriteString(escaping{r.app.streams.ErrOut}, v.endText()); err != nil {
		return err
	}
	return exitWith(int(result.Outcome))
}

// rolledNames are the nodes that are through, as -o name prints them.
func rolledNames(result *rolling.Result) []string {
	var out []string
	for _, n := range result.Report.Nodes {
		if n.Step == rolling.Done {
			out = append(out, n.Name)
		}
	}
	return slashed(sorted(out))
}
