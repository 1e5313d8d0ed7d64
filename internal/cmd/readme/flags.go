package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/safedrain/safedrain/internal/cli"
)

// flagTables are the flags of a drain: those it has in common with kubectl drain, then its own.
func flagTables() string {
	root := cli.NewCommand(cli.Process{Args: []string{"safedrain"}, Streams: discard()})
	kubectl := map[string]bool{}
	for _, name := range cli.KubectlFlags() {
		kubectl[name] = true
	}
	var same, ours []*pflag.Flag
	root.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Hidden || f.Name == "help":
		case kubectl[f.Name]:
			same = append(same, f)
		default:
			ours = append(ours, f)
		}
	})
	return "As in `kubectl drain`:\n\n" + table(same) + "\nOnly here:\n\n" + table(ours)
}

func table(flags []*pflag.Flag) string {
	var b strings.Builder
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	for _, f := range flags {
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, value, strings.ReplaceAll(f.Usage, "|", `\|`))
	}
	return b.String()
}
