package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/gate/leftovers"
	"github.com/safedrain/safedrain/pkg/guard"
)

// UncordonFlags are the flags of uncordon as they were typed.
type UncordonFlags struct {
	AllOurs     bool
	Forgotten   bool
	WaitTimeout time.Duration
	DryRun      string
	Selector    string
	Rebalance   []string

	HookFlags
}

// defaultUncordonFlags is the one place where the defaults stand.
func defaultUncordonFlags() *UncordonFlags {
	return &UncordonFlags{WaitTimeout: 5 * time.Minute, DryRun: "none"}
}

func (f *UncordonFlags) bind(fs *pflag.FlagSet) {
	fs.BoolVar(&f.AllOurs, "all-ours", f.AllOurs, "Every node that safedrain ever withdrew, and what a gate left that was uninstalled.")
	fs.BoolVar(&f.Forgotten, "forgotten", f.Forgotten, "Nodes that take pods again and are still withdrawn.")
	fs.DurationVar(&f.WaitTimeout, "wait-timeout", f.WaitTimeout, "How long to wait for pods that are coming to the node.")
	fs.StringVar(&f.DryRun, "dry-run", f.DryRun, `Must be "none", "server", or "client".`)
	fs.Lookup("dry-run").NoOptDefVal = dryRunUnchanged
	fs.StringVarP(&f.Selector, "selector", "l", f.Selector, "Selector (label query) to choose nodes by.")
	bindRebalance(fs, &f.Rebalance, "Services (namespace/name, or all; bare: all) for which one pod of a node that has several is evicted, so that a node that came back empty gets an endpoint before it returns.")
	f.HookFlags.bind(fs)
}

// uncordonRun is the command uncordon.
type uncordonRun struct {
	app    *app
	flags  *UncordonFlags
	output format
	gate   *gateState // with --all-ours; nil: nothing is known of one
}

func (a *app) uncordonCommand() *cobra.Command {
	r := &uncordonRun{app: a, flags: defaultUncordonFlags()}
	cmd := &cobra.Command{
		Use:   "uncordon NODE...",
		Short: "Put nodes back: schedulable, and into the load balancers again",
		Long: "Make nodes schedulable, wait for the pods that are coming, and undo exactly what a drain has set: the node returns to\n" +
			"its load balancers once its pods are Ready and its kube-proxy knows them. A node that safedrain did not drain is only\n" +
			"uncordoned.",
		Example:           "  " + a.name + " uncordon node-3\n  " + a.name + " uncordon --forgotten",
		ValidArgsFunction: a.completeNodes,
		RunE:              r.run,
	}
	r.flags.bind(cmd.Flags())
	cmd.Flags().VarP(&r.output, "output", "o", "Output format: json, yaml, wide or name.")
	return cmd
}

func (r *uncordonRun) run(cmd *cobra.Command, args []string) error {
	if r.flags.WaitTimeout < 0 {
		return usagef("--wait-timeout=%s: must not be negative", r.flags.WaitTimeout)
	}
	if err := checkRebalance(r.flags.Rebalance); err != nil {
		return err
	}
	mode, warnings, err := dryRun(r.flags.DryRun)
	if err != nil {
		return err
	}
	chosen, err := r.flags.choose(nil)
	if err != nil {
		return err
	}
	options := drain.RestoreOptions{WaitTimeout: r.flags.WaitTimeout, Rebalance: sorted(r.flags.Rebalance), DryRun: mode, Strays: r.flags.AllOurs && mode == drain.DryRunNone}
	r.app.warn(warnings...)
	if options.Nodes, err = r.nodes(cmd, args); err != nil {
		return err
	}
	if len(options.Nodes) == 0 {
		fmt.Fprintln(r.app.streams.ErrOut, "no node is withdrawn by safedrain: nothing to put back")
	}
	e, err := r.app.newEngine(chosen)
	if err != nil {
		return err
	}
	var restored []drain.Restored
	result := r.app.withProgress(mode, r.output.document(), func(p progress) *drain.Result {
		var end *drain.Result
		restored, end = e.runner(p).Uncordon(cmd.Context(), options)
		return end
	})
	cleared := r.clearGate(cmd.Context(), r.gate, mode != drain.DryRunNone)
	if err := r.finish(cmd, options.Nodes, restored, result); err != nil || cleared {
		return err
	}
	return exitWith(1)
}

// nodes are the nodes to put back: those named, those a selector matches, or those a drain of ours has left marked.
func (r *uncordonRun) nodes(cmd *cobra.Command, args []string) ([]string, error) {
	ctx := cmd.Context()
	marked := r.flags.AllOurs || r.flags.Forgotten
	switch {
	case marked && (len(args) > 0 || r.flags.Selector != ""):
		return nil, usagef("--all-ours and --forgotten choose the nodes: name none")
	case marked:
		if r.flags.AllOurs {
			var err error
			if r.gate, err = r.findGate(ctx); err != nil {
				return nil, err
			}
		}
		return r.marked(ctx)
	}
	picked, err := chooseNodes(cmd, args, r.flags.Selector, false)
	if err != nil {
		return nil, err
	}
	return picked.live(ctx, r.app.kube)
}

func (r *uncordonRun) marked(ctx context.Context) ([]string, error) {
	return r.app.kube.nodesThat(ctx, labels.Everything(), func(n *corev1.Node) bool {
		_, ours := n.Annotations[claim.Annotation]
		return ours && (r.flags.AllOurs || !n.Spec.Unschedulable) && !r.gate.leaves(n)
	})
}

// kindRestoreReport is the document of the command uncordon.
const kindRestoreReport = "RestoreReport"

// restoreReport says what uncordon did to each node.
type restoreReport struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Nodes      []restoredNode `json:"nodes"`
	// Gate is what was taken away of a gate that was uninstalled; with --all-ours.
	Gate *leftovers.Cleared `json:"gate,omitempty"`
}

type restoredNode struct {
	Name     string            `json:"name"`
	Services []restoredService `json:"services"`
	Moved    []movedPod        `json:"moved,omitempty"` // by --rebalance
	Warnings []string          `json:"warnings"`
	StaysOut []string          `json:"staysOut,omitempty"` // what could not be put back, and why
}

type restoredService struct {
	Service string `json:"service"` // namespace/name
	Hook    string `json:"hook"`
	Back    bool   `json:"back"`
	Detail  string `json:"detail,omitempty"`
}

// report is the document of the run.
func (r *uncordonRun) report(restored []drain.Restored) *restoreReport {
	report := newRestoreReport(restored)
	if r.gate != nil {
		report.Gate = r.gate.Cleared
	}
	return report
}

// movedPod is a pod that was evicted elsewhere so that the node gets an endpoint, and where its replacement went.
type movedPod struct {
	Service string `json:"service"` // namespace/name
	Pod     string `json:"pod"`
	From    string `json:"from"`
	New     string `json:"new,omitempty"`
	To      string `json:"to,omitempty"` // "" when it had no node in time
}

func newRestoreReport(restored []drain.Restored) *restoreReport {
	report := &restoreReport{APIVersion: guard.APIVersion, Kind: kindRestoreReport, Nodes: []restoredNode{}}
	for _, n := range restored {
		row := restoredNode{Name: n.Node, Services: []restoredService{}, Warnings: append([]string{}, n.Warnings...), StaysOut: n.StaysOut}
		for _, s := range n.Services {
			row.Services = append(row.Services, restoredService(s))
		}
		for _, m := range n.Moved {
			row.Moved = append(row.Moved, movedPod(m))
		}
		report.Nodes = append(report.Nodes, row)
	}
	return report
}

func (r *uncordonRun) finish(cmd *cobra.Command, nodes []string, restored []drain.Restored, result *drain.Result) error {
	if result.Outcome == drain.Failed && result.Err != nil {
		return &connectError{r.app.kube, result.Err}
	}
	v := &uncordonView{nodes: nodes, restored: restored, result: result, typed: typedFlags(r.app.name, cmd.Flags())}
	if result.Err != nil {
		v.reason = r.app.explain(result.Err)
	}
	out, errOut := escaping{r.app.streams.Out}, escaping{r.app.streams.ErrOut}
	if r.output.document() {
		var names []string
		if result.Outcome == drain.Done {
			names = slashed(nodes)
		}
		if err := writeDocument(out, r.output, r.report(restored), names); err != nil {
			return err
		}
	} else if _, err := io.WriteString(out, uncordonResult(v)); err != nil {
		return err
	}
	if _, err := io.WriteString(errOut, uncordonText(v)); err != nil {
		return err
	}
	return exitWith(int(result.Outcome))
}
