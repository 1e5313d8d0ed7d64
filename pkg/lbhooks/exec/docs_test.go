package execcmd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	execcmd "github.com/safedrain/safedrain/pkg/lbhooks/exec"
)

const page = "../../../docs/hooks/exec.md"

// TestDocumentedProgram runs the program of the page with a balancer beside it.
func TestDocumentedProgram(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(string(text))
	if block == nil {
		t.Fatalf("no program in %s", page)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "balancerctl"), `#!/bin/sh
state=$(dirname "$0")/state
case $1 in
drain) echo drained >"$state" ;;
ready) echo up >"$state" ;;
state) cat "$state" ;;
esac
`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	hook := execcmd.New("exec", options(t, map[string]string{"command": write(t, filepath.Join(dir, "hook"), block[1])}), false)
	if p, err := hook.Prove(t.Context(), target()); err == nil || p.Out {
		t.Errorf("a balancer that cannot be asked: %+v, %v", p, err)
	}
	for _, step := range []struct {
		act      string
		out      bool
		evidence string
	}{{"withdraw", true, "n1 is drained"}, {"restore", false, "n1 is up"}} {
		act := hook.Withdraw
		if step.act == "restore" {
			act = hook.Restore
		}
		if err := act(t.Context(), target()); err != nil {
			t.Fatal(err)
		}
		if p, err := hook.Prove(t.Context(), target()); err != nil || p.Out != step.out || p.Evidence != step.evidence {
			t.Errorf("after %s: %+v, %v", step.act, p, err)
		}
	}
}

// Every option and exit code of the code is on the page.
func TestDocumentedOptions(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"| 75 |", "| 76 |", "| 77, 78, 126, 127 |"}
	for _, o := range execcmd.Options() {
		want = append(want, "| `"+o.Name+"` |")
	}
	for _, w := range want {
		if !strings.Contains(string(text), w) {
			t.Errorf("%s lacks %q", page, w)
		}
	}
}
