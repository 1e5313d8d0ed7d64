package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/cluster"
)

// chosen says which nodes were asked for: by name, by a selector, or all of them.
type chosen struct {
	names    []string // sorted, each once
	selector labels.Selector
	every    bool
}

// chooseNodes reads the arguments and the selector of a command. Whether the names exist is for the source to say.
func chooseNodes(cmd *cobra.Command, args []string, selector string, every bool) (chosen, error) {
	names, err := nodeNames(cmd, args)
	switch {
	case err != nil:
		return chosen{}, err
	case len(names) > 0 && selector != "":
		return chosen{}, usagef("cannot specify both a node name and a --selector option")
	case len(names) > 0:
		return chosen{names: names}, nil
	case selector != "":
		parsed, err := labels.Parse(selector)
		if err != nil {
			return chosen{}, usagef("--selector=%s: %w", selector, err)
		}
		return chosen{selector: parsed}, nil
	case every:
		return chosen{every: true, selector: labels.Everything()}, nil
	}
	return chosen{}, usagef("name a node: %s", cmd.UseLine())
}

// nodeNames reads NAME, node/NAME and "node NAME..." and returns the names sorted, each once.
func nodeNames(cmd *cobra.Command, args []string) ([]string, error) {
	typed := len(args) > 0 && isNodeType(args[0])
	if typed {
		args = args[1:]
	}
	var names []string
	for _, arg := range args {
		kind, name, slash := strings.Cut(arg, "/")
		switch {
		case slash && !isNodeType(kind):
			return nil, usagef("expected resource of type node, got %q%s", arg, meantHold(cmd, arg))
		case slash && name == "" || arg == "":
			return nil, usagef("%q names no node", arg)
		case slash:
			names = append(names, name)
		case !typed && isCommand(cmd.Root(), arg):
			return nil, usagef("%q is a command; a node of that name is written node/%s", arg, arg)
		default:
			names = append(names, arg)
		}
	}
	return sorted(names), nil
}

// meantHold is the hint for a Service that stands apart from --hold: bare, the flag takes no value.
func meantHold(cmd *cobra.Command, arg string) string {
	if f := cmd.Flags().Lookup("hold"); f == nil || !f.Changed || !namespaced(arg) {
		return ""
	}
	return fmt.Sprintf("; a Service to hold is written with an equals sign: --hold=%s", arg)
}

func isNodeType(s string) bool { return s == "node" || s == "nodes" || s == "no" }

func isCommand(root *cobra.Command, name string) bool {
	return slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
}

// resolve returns the names of the nodes that were chosen, from a snapshot that has them all.
func (c *chosen) resolve(s *cluster.Snapshot) ([]string, error) {
	if c.selector == nil {
		return c.names, s.Resolve(c.names)
	}
	var names []string
	for n := range s.RawNodes() {
		if c.selector.Matches(labels.Set(n.Labels)) {
			names = append(names, n.Name)
		}
	}
	return names, c.none(names)
}

func (c *chosen) none(names []string) error {
	switch {
	case len(names) > 0:
		return nil
	case c.every:
		return errors.New("there are no nodes")
	}
	return fmt.Errorf("no node matches the selector %q; see kubectl get nodes --show-labels", c.selector)
}

// live returns the names that were chosen; only a selector needs the cluster for that. Whether a name exists is found
// out when the cluster is read, before anything changes.
func (c *chosen) live(ctx context.Context, k *kube) ([]string, error) {
	if c.selector == nil {
		return c.names, nil
	}
	names, err := k.nodeNames(ctx, c.selector)
	if err != nil {
		return nil, err
	}
	return names, c.none(names)
}

// meantCommand adds to an error about an unknown node the command that may have been meant.
func meantCommand(cmd *cobra.Command, err error) error {
	var missing *cluster.NotFound
	if cmd != cmd.Root() || !errors.As(err, &missing) {
		return err
	}
	for _, name := range missing.Names {
		if like := cmd.SuggestionsFor(name); len(like) > 0 {
			return fmt.Errorf("%q is no command and no node; did you mean the command %q? Nothing changed", name, like[0])
		}
	}
	return err
}
