package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// runTimeout is for a command that hangs; its own timeouts are shorter.
const runTimeout = 4 * time.Minute

// program is how a command is run: which one, by whose kubeconfig, with what on its standard input and, beside that, in its
// environment.
type program struct {
	path       string
	kubeconfig string
	stdin      string
	env        []string
}

// run runs safedrain as somebody who may do everything and returns what it printed and its exit code.
func run(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return program{path: binary, kubeconfig: kubeconfig}.run(t, args...)
}

// kubectl runs kubectl, which has to succeed, and returns its output.
func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	stdout, stderr, code := program{path: kubectlBin, kubeconfig: kubeconfig}.run(t, args...)
	if code != 0 {
		t.Fatalf("kubectl %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

func (p program) run(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return p.start(t, args...).wait(t)
}

// running is a command that runs, for tests that act on it meanwhile.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	line           string
	cancel         context.CancelFunc
}

// start starts a command without a terminal and without anything of the caller's environment that could change it.
func (p program) start(t testing.TB, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	r := &running{cancel: cancel, line: strings.Join(append([]string{p.path}, args...), " ")}
	r.cmd = exec.CommandContext(ctx, p.path, args...)
	r.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KUBECONFIG=" + p.kubeconfig}, p.env...)
	r.cmd.Stdin = strings.NewReader(p.stdin)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if err := r.cmd.Start(); err != nil {
		cancel()
		t.Fatalf("start %s: %v", r.line, err)
	}
	t.Cleanup(cancel)
	return r
}

// signal sends a signal to the command. One that has ended already shows that by its exit code.
func (r *running) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("signal %s: %v", r.line, err)
	}
}

// wait waits for the end of the command; -1 is the exit code of one that a signal ended.
func (r *running) wait(t testing.TB) (stdout, stderr string, code int) {
	t.Helper()
	defer r.cancel()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", r.line, err)
	}
	return r.stdout.String(), r.stderr.String(), r.cmd.ProcessState.ExitCode()
}
