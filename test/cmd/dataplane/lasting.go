package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

const defaultName = "lab"

// up starts a lab that stays.
func up(ctx context.Context, args []string) error {
	var o dataplane.Options
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.StringVar(&o.Name, "name", defaultName, "tells labs apart")
	flags.IntVar(&o.Nodes, "nodes", 3, "how many nodes")
	flags.StringVar(&o.ProxyMode, "proxy-mode", dataplane.NFTables, "kube-proxy's mode: nftables or iptables")
	flags.BoolVar(&o.IPv6, "ipv6", false, "IPv6 too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.Lasting = true
	started := time.Now()
	lab, err := dataplane.Up(ctx, o)
	if err != nil {
		return err
	}
	client, err := lab.AddHost(ctx, "client")
	if err != nil {
		return errors.Join(err, lab.Down(context.WithoutCancel(ctx)))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "lab %q up in %s, logs in %s\nexport KUBECONFIG=%s\nkubectl: %s\n", lab.Name,
		time.Since(started).Round(100*time.Millisecond), lab.Dir, lab.Kubeconfig, filepath.Join(lab.Cluster.Programs().Dir(), "kubectl"))
	for _, n := range lab.Nodes {
		fmt.Fprintf(&text, "%-10s %-15s ip netns exec %s sh\n", n.Name, n.Addr, n.Netns)
	}
	fmt.Fprintf(&text, "%-10s %-15s ip netns exec %s sh\n", client.Name, client.Addr, client.Netns)
	_, err = fmt.Fprint(os.Stdout, text.String())
	return err
}

// down ends a lab that stays.
func down(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("down", flag.ContinueOnError)
	name := flags.String("name", defaultName, "which lab")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := dataplane.Sweep(ctx, *name); err != nil {
		return err
	}
	_, err := fmt.Fprintf(os.Stdout, "lab %q is gone\n", *name)
	return err
}

// build builds what a lab needs.
func build(ctx context.Context) error {
	programs, err := controlplane.Binaries(ctx)
	if err != nil {
		return err
	}
	program, err := controlplane.LocalProgram(ctx, "dataplane")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "control plane: %s\ndata plane: %s\n", programs.Dir(), filepath.Dir(program))
	return err
}
