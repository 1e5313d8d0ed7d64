package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
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

// completeNodes completes the names of nodes from the cluster. kubectl's own completion would do, and bring all of kubectl
// get and api-resources along, which every start of the program would pay for.
func (a *app) completeNodes(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	names, err := a.kube.nodeNames(ctx, labels.Everything())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, toComplete) }), cobra.ShellCompDirectiveNoFileComp
}
