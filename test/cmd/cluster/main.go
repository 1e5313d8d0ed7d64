// Command cluster starts a control plane that stays, for trying safedrain by hand, and ends it again:
//
//	cluster up [-example DIR]   start it, with three workers and a control plane node, and print its kubeconfig
//	cluster down                end exactly the processes that up started
//	cluster build               build the programs that tests and up need, if they are not there
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/safedrain/safedrain/test/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: cluster up [-example DIR] | down | build")
	}
	switch args[0] {
	case "up":
		flags := flag.NewFlagSet("up", flag.ContinueOnError)
		example := flags.String("example", "", "a directory whose manifests.yaml is applied to the new cluster")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return up(ctx, *example)
	case "down":
		return down(ctx)
	case "build":
		programs, err := controlplane.Binaries(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(os.Stdout, "control plane:", programs.Dir())
		return err
	}
	return fmt.Errorf("unknown command %q", args[0])
}
