// Command safedrain drains nodes without dropping traffic of Services with externalTrafficPolicy: Local.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/safedrain/safedrain/internal/cli"
)

func main() {
	ctx, soft, stop := signals(context.Background())
	code := cli.Run(ctx, cli.Process{
		Args:    os.Args,
		Streams: cli.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
		Soft:    soft,
	})
	stop()
	os.Exit(code)
}

// signals returns a channel that is closed at the first SIGINT or SIGTERM, and a context that ends at the second.
func signals(parent context.Context) (context.Context, <-chan struct{}, func()) {
	ctx, cancel := context.WithCancel(parent)
	soft := make(chan struct{})
	got := make(chan os.Signal, 2)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-got:
			close(soft)
		case <-ctx.Done():
			return
		}
		select {
		case <-got:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, soft, func() {
		signal.Stop(got)
		cancel()
	}
}
