package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/klog/v2"

	"github.com/safedrain/safedrain/internal/drain"
)

// pluginPrefix starts the names of programs that kubectl runs as its own commands.
const pluginPrefix = "kubectl-"

// app is what the commands share.
type app struct {
	name    string // what people type: "safedrain", or "kubectl safedrain"
	streams Streams
	soft    <-chan struct{} // closed at the first signal
	kube    *kube
}

// Process is what main hands over.
type Process struct {
	Args    []string // with the program's own name first
	Streams Streams
	// Soft is closed at the first signal; the context ends at the second.
	Soft <-chan struct{}
}

// Run carries out one command line and returns its exit code. It never panics.
func Run(ctx context.Context, p Process) (code int) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintf(p.Streams.ErrOut, "error: internal error: %s; please report it, with the command line\n", oneLine(fmt.Sprint(r)))
			klog.V(1).Infof("%s", debug.Stack())
			code = exitError
		}
	}()
	return newApp(p).execute(ctx, p.Args[1:])
}

// execute carries out one command line.
func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.streams.In)
	root.SetOut(a.streams.Out)
	root.SetErr(a.streams.ErrOut)
	cmd, err := root.ExecuteContextC(ctx)
	return a.end(cmd, err)
}

func newApp(p Process) *app {
	name := strings.TrimSuffix(filepath.Base(p.Args[0]), ".exe")
	if rest, ok := strings.CutPrefix(name, pluginPrefix); ok {
		name = "kubectl " + rest
	}
	return &app{
		name: name, streams: p.Streams, soft: p.Soft,
		kube: &kube{flags: genericclioptions.NewConfigFlags(true), warnings: escaping{p.Streams.ErrOut}},
	}
}

// end prints what an error still has to say and returns the exit code.
func (a *app) end(cmd *cobra.Command, err error) int {
	code, printed := exitCode(err)
	if printed {
		return code
	}
	if code == exitUsage {
		fmt.Fprintf(a.streams.ErrOut, "error: %s\nSee '%s --help'\n", oneLine(err.Error()), cmd.CommandPath())
		return code
	}
	if errors.Is(err, context.Canceled) {
		code = int(drain.Interrupted)
	}
	fmt.Fprintf(a.streams.ErrOut, "error: %s\n", escape(a.explain(meantCommand(cmd, err))))
	return code
}

// warn prints a warning as kubectl does.
func (a *app) warn(texts ...string) {
	for _, t := range texts {
		fmt.Fprintf(a.streams.ErrOut, "Warning: %s\n", oneLine(t))
	}
}

// interruptible returns a context that also ends at the first signal: for commands that change nothing.
func (a *app) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if a.soft == nil {
		return ctx, cancel
	}
	go func() {
		select {
		case <-a.soft:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
