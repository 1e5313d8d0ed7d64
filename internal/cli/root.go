package cli

import (
	"flag"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

const rootLong = `Drain nodes without dropping traffic of Services with externalTrafficPolicy: Local.

Takes the place of kubectl drain, with all its flags. Before it evicts, it says what the drain would break, refuses what
waiting cannot make safe, takes the node out of the load balancers and waits for proof. Exit 0 means: the node may be
switched off.

Exit codes: 0 done, 1 error, 2 usage, 3 refused and nothing changed, 4 begun but not finished, 5 a hook failed or could
not prove, 130 interrupted.`

// NewCommand returns the whole tree of commands, for documentation made from it.
func NewCommand(p Process) *cobra.Command { return newApp(p).root() }

func (a *app) root() *cobra.Command {
	run := newDrainRun(a)
	root := &cobra.Command{
		Use:               strings.ReplaceAll(a.name, " ", "-") + " NODE...",
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: a.name},
		Short:             "Drain nodes without dropping traffic of Local Services",
		Long:              rootLong,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeNodes,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRun:  a.quiet,
		RunE:              run.run,
	}
	run.bind(root)
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	a.kube.bind(root.PersistentFlags())
	bindVerbosity(root.PersistentFlags())
	root.AddCommand(
		a.drainCommand(), a.planCommand(), a.auditCommand(), a.uncordonCommand(), a.hooksCommand(), a.rbacCommand(),
		a.gateCommand(), a.versionCommand(),
	)
	return root
}

// bindVerbosity adds -v, which feeds the log of the Kubernetes client; it is silent by default.
func bindVerbosity(fs *pflag.FlagSet) {
	local := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(local)
	v := pflag.PFlagFromGoFlag(local.Lookup("v"))
	v.Usage = "Log level of the Kubernetes client, to stderr."
	fs.AddFlag(v)
}

// quiet turns the log of the Kubernetes client off unless -v asks for it.
func (a *app) quiet(cmd *cobra.Command, _ []string) {
	if f := cmd.Flags().Lookup("v"); f == nil || !f.Changed {
		klog.SetLogger(klog.Logger{})
	}
}
