package cli_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/safedrain/safedrain/internal/cli"
)

// TestMain lets scripts run the program under both of its names.
func TestMain(m *testing.M) {
	program := func() {
		os.Exit(cli.Run(context.Background(), cli.Process{
			Args: os.Args, Streams: cli.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
		}))
	}
	testscript.Main(m, map[string]func(){"safedrain": program, "kubectl-safedrain": program})
}

// TestScripts runs testdata/script: every command, exit code and output format, without a cluster.
func TestScripts(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("EXAMPLE", filepath.Join(root, "example"))
			e.Setenv("CASES", filepath.Join(root, "cases"))
			e.Setenv("KUBECONFIG", "")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a program and checks its exit code: exits 3 safedrain plan node-1.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
