package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// auditRun is the command audit.
type auditRun struct {
	app    *app
	source SourceFlags
	output format
	failOn string
	fix    bool
	probes probeFlags
	hooks  HookFlags
}

// Values of --fail-on.
const (
	failOnWarn  = "warn"
	failOnBlock = "block"
)

func (a *app) auditCommand() *cobra.Command {
	r := &auditRun{app: a}
	cmd := &cobra.Command{
		Use:   "audit [NAMESPACE/NAME]",
		Short: "Show the coverage of every Local Service: blackholes now, and settings that make them",
		Long: "Show the coverage of every Local Service, or of one, as it is now: which nodes get its traffic and have no endpoint,\n" +
			"and which settings of placement make such nodes. -n narrows it to a namespace.\n" +
			"With --fix it prints patches that mend those settings, and where there is no safe one; nothing is applied.\n" +
			"With --probe it connects from here to the nodes, and shows what they answer beside what the rules say.\n" +
			"Exit 0, or 3 with --fail-on when a finding of that severity stands.",
		Example: "  " + a.name + " audit\n  " + a.name + " audit ingress/edge -o wide\n  " + a.name + " audit -f dump.yaml --fail-on=warn\n  " +
			a.name + " audit --fix\n  " + a.name + " audit --fix -o yaml >kustomization.yaml",
		Args: atMost(1),
		RunE: r.run,
	}
	r.source.bind(cmd.Flags())
	cmd.Flags().VarP(&r.output, "output", "o", "Output format: json, yaml, wide or name.")
	r.hooks.bind(cmd.Flags())
	cmd.Flags().StringVar(&r.failOn, "fail-on", "", "Exit 3 when a finding of this severity or a graver one stands: warn or block.")
	cmd.Flags().BoolVar(&r.fix, "fix", false, "Print the commands that apply patches against what was found; with -o json or yaml the patches as a kustomize Component.")
	r.probes.bind(cmd.Flags())
	return cmd
}

func (r *auditRun) run(cmd *cobra.Command, args []string) error {
	ctx, stop := r.app.interruptible(cmd.Context())
	defer stop()
	if err := r.source.check(); err != nil {
		return err
	}
	if r.failOn != "" && r.failOn != failOnWarn && r.failOn != failOnBlock {
		return usagef("--fail-on=%s: want warn or block", r.failOn)
	}
	if r.fix && (r.probes.on || r.output == formatWide || r.output == formatName) {
		return usagef("--fix goes with neither --probe nor -o %s nor -o %s", formatWide, formatName)
	}
	if err := r.probes.check(cmd.Flags(), &r.source); err != nil {
		return err
	}
	filter, err := r.filter(args)
	if err != nil {
		return err
	}
	report, view, err := r.judge(ctx, filter)
	if err != nil {
		return err
	}
	view.typed = typedFlags(r.app.name, cmd.Flags())
	view.source = r.source
	print := func() error { return r.print(report, view) }
	if r.fix {
		print = func() error { return r.printFixes(report) }
	}
	if err := print(); err != nil {
		return err
	}
	if r.fails(report) {
		return exitWith(int(drain.Refused))
	}
	return nil
}

// filter reads "namespace/name" or, with -n, "name".
func (r *auditRun) filter(args []string) (guard.AuditFilter, error) {
	var f guard.AuditFilter
	if ns := r.app.kube.flags.Namespace; ns != nil {
		f.Namespace = *ns
	}
	if len(args) == 0 {
		return f, nil
	}
	key, err := serviceArg(args[0], f.Namespace)
	return guard.AuditFilter(key), err
}

// serviceArg reads "namespace/name", "service/namespace/name", or "name" where a namespace was given.
func serviceArg(arg, namespace string) (guard.Key, error) {
	rest := strings.TrimPrefix(strings.TrimPrefix(arg, "service/"), "svc/")
	ns, name, slash := strings.Cut(rest, "/")
	if !slash {
		ns, name = namespace, rest
	}
	if ns == "" || name == "" || strings.Contains(name, "/") {
		return guard.Key{}, usagef("%q: name a Service as namespace/name", arg)
	}
	return guard.Key{Namespace: ns, Name: name}, nil
}

func (r *auditRun) judge(ctx context.Context, filter guard.AuditFilter) (*guard.CoverageReport, *auditView, error) {
	chosen, err := r.hooks.choose(nil)
	if err != nil {
		return nil, nil, err
	}
	w, err := r.app.load(ctx, &r.source, chosen, cluster.Scope{Workloads: true})
	if err != nil {
		return nil, nil, err
	}
	ix := w.snap.Index(w.hooks, nil)
	report := guard.Audit(ix, filter)
	if err := r.gate(ctx, ix, filter, &report); err != nil {
		return nil, nil, err
	}
	skipped := ix.Skipped()
	report.Skipped.OtherProxy, report.Skipped.Headless, report.Skipped.ExternalName = skipped.OtherProxy, skipped.Headless, skipped.ExternalName
	if filter.Name != "" && len(report.Services) == 0 {
		key := guard.Key(filter)
		if _, ok := w.snap.RawService(key); !ok {
			return nil, nil, notFoundService(key)
		}
	}
	if r.probes.on {
		if err := r.probe(ctx, w, ix, &report); err != nil {
			return nil, nil, err
		}
	}
	view := &auditView{report: &report, wide: r.output == formatWide, tainted: map[string]bool{}, filter: filter}
	for n := range ix.Nodes() {
		if n.ControlPlane && len(n.Taints) > 0 {
			view.tainted[n.Name] = true
		}
	}
	return &report, view, nil
}

// gate adds what a gate that is installed in a live cluster does not cover.
func (r *auditRun) gate(ctx context.Context, ix guard.Index, filter guard.AuditFilter, report *guard.CoverageReport) error {
	if r.source.offline() {
		return nil
	}
	c, err := r.app.kube.clients()
	if err != nil {
		return err
	}
	facts, err := cluster.Gate(ctx, c)
	if err != nil {
		return &connectError{kube: r.app.kube, err: err}
	}
	if facts != nil {
		report.Findings = append(report.Findings, guard.Ungated(ix, filter, facts)...)
	}
	return nil
}

func (r *auditRun) print(report *guard.CoverageReport, view *auditView) error {
	out := r.app.streams.Out
	if !r.output.document() {
		_, err := io.WriteString(escaping{out}, auditText(view))
		return err
	}
	var names []string
	for i := range report.Services {
		if worst(report.Services[i].Findings).AtLeast(guard.Warn) {
			names = append(names, "service/"+report.Services[i].Key().String())
		}
	}
	return writeDocument(out, r.output, report, names)
}

func (r *auditRun) fails(report *guard.CoverageReport) bool {
	limit := map[string]guard.Severity{failOnWarn: guard.Warn, failOnBlock: guard.Block}[r.failOn]
	if limit == "" {
		return false
	}
	if len(report.Findings) > 0 && worst(report.Findings).AtLeast(limit) {
		return true
	}
	for i := range report.Services {
		if fs := report.Services[i].Findings; len(fs) > 0 && worst(fs).AtLeast(limit) {
			return true
		}
	}
	return false
}

// worst is the gravest severity of some findings, Info of none.
func worst(fs []guard.Finding) guard.Severity {
	w := guard.Info
	for _, f := range fs {
		if f.Severity.AtLeast(w) {
			w = f.Severity
		}
	}
	return w
}
