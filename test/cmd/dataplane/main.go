// Command dataplane starts the data plane lab to try safedrain on by hand, and ends it again. It is also every program that
// runs on the lab's nodes, in one binary:
//
//	dataplane up [-name NAME] [-nodes N] [-proxy-mode MODE] [-ipv6]   start a lab that stays, and say how to reach it
//	dataplane down [-name NAME]                                       end it: every process, namespace, interface and file
//	dataplane build                                                   build the programs that a lab needs, if they are not there
//	dataplane load ...                                                send requests at a fixed rate and count what becomes of them
//	dataplane agent|pod|kube-proxy ...                                what the lab itself starts
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"

	"github.com/safedrain/safedrain/test/dataplane/agent"
	"github.com/safedrain/safedrain/test/dataplane/load"
	"github.com/safedrain/safedrain/test/dataplane/server"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "kube-proxy" {
		os.Args = os.Args[1:]
		os.Exit(cli.Run(kubeproxy.NewProxyCommand()))
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: dataplane up|down|build [flags]")
	}
	if args[0] == "pod" { // it has its own way with SIGTERM
		return server.Run(context.Background())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch args[0] {
	case "agent":
		return agent.Run(ctx, args[1:])
	case "up":
		return up(ctx, args[1:])
	case "down":
		return down(ctx, args[1:])
	case "load":
		return load.Command(ctx, args[1:], os.Stdout, os.Stderr)
	case "build":
		return build(ctx)
	}
	return fmt.Errorf("unknown command %q", args[0])
}
