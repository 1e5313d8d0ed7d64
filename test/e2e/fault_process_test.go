package e2e

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/safedrain/safedrain/test/controlplane"
)

// transcript is what a command has printed so far, stdout and stderr as they came.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *transcript) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *transcript) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// begun is a safedrain whose output is read while it runs.
type begun struct {
	*running
	said *transcript
	over chan struct{} // closed when it has ended
}

// begin starts safedrain as somebody who may do everything.
func begin(t testing.TB, args ...string) *begun {
	t.Helper()
	return program{path: binary, kubeconfig: kubeconfig}.begin(t, args...)
}

// begin starts a command whose output is read while it runs.
func (p program) begin(t testing.TB, args ...string) *begun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	b := &begun{
		running: &running{cancel: cancel, line: strings.Join(append([]string{p.path}, args...), " ")},
		said:    &transcript{}, over: make(chan struct{}),
	}
	b.cmd = exec.CommandContext(ctx, p.path, args...)
	b.cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "KUBECONFIG=" + p.kubeconfig}
	b.cmd.Stdout, b.cmd.Stderr = b.said, b.said
	if err := b.cmd.Start(); err != nil {
		cancel()
		t.Fatalf("start %s: %v", b.line, err)
	}
	t.Cleanup(cancel)
	go func() {
		defer close(b.over)
		_ = b.cmd.Wait() // the exit code says it
	}()
	return b
}

// says waits until the command has printed a text. It ends the test when the command ended without.
func (b *begun) says(e *controlplane.Env, text string) {
	e.Helper()
	e.Wait(b.line+" says "+text, func(context.Context) (bool, string, error) {
		said := b.said.String()
		if strings.Contains(said, text) {
			return true, "", nil
		}
		select {
		case <-b.over:
			if said = b.said.String(); !strings.Contains(said, text) {
				e.Fatalf("%s ended with exit code %d and never said %q\n%s", b.line, b.code(), text, said)
			}
			return true, "", nil
		default:
			return false, said, nil
		}
	})
}

// end waits for the end of the command and returns what it printed and its exit code; -1 when a signal ended it.
func (b *begun) end() (said string, code int) {
	<-b.over
	b.cancel()
	return b.said.String(), b.code()
}

func (b *begun) code() int { return b.cmd.ProcessState.ExitCode() }

// kill ends the command as kill -9 does, and waits until it is gone.
func (b *begun) kill() {
	_ = b.cmd.Process.Kill() // it may have ended by itself
	<-b.over
}

// wantSaid fails the test for each text that is not in what a command said.
func wantSaid(t testing.TB, said string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("no %q in\n%s", text, said)
		}
	}
}
