package cli

import (
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/completion"
)

// atMost allows up to n arguments; more are a mistake in what was typed.
func atMost(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("accepts at most %s, got %d", count(n, "argument"), len(args))
		}
		return nil
	}
}

// completionTimeout bounds the wait of a shell for the names of nodes.
const completionTimeout = 2 * time.Second

// completeNodes completes the names of nodes from the cluster.
func (a *app) completeNodes(_ *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	flags := a.kube.flags
	if flags.Timeout == nil || *flags.Timeout == "" || *flags.Timeout == "0" {
		timeout := completionTimeout.String()
		flags.Timeout = &timeout
	}
	var getter genericclioptions.RESTClientGetter = flags
	return completion.CompGetResource(cmdutil.NewFactory(getter), "node", toComplete), cobra.ShellCompDirectiveNoFileComp
}
