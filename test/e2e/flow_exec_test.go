package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// directoryHook works a balancer that is a directory: out/NODE is there while the node is out. It is out at the third
// observation after the withdrawal; the file stuck makes it never leave.
const directoryHook = `#!/bin/sh
dir=$(dirname "$0")
echo "$1 $SAFEDRAIN_NODE" >>"$dir/calls"
case $1 in
withdraw) : >"$dir/out/$SAFEDRAIN_NODE" ;;
restore) rm -f "$dir/out/$SAFEDRAIN_NODE" "$dir/proofs" ;;
prove)
  [ -e "$dir/out/$SAFEDRAIN_NODE" ] && [ ! -e "$dir/stuck" ] && echo x >>"$dir/proofs"
  if [ "$(cat "$dir/proofs" 2>/dev/null | wc -l)" -ge 3 ]; then date +%s.%N >"$dir/proven"; echo "$SAFEDRAIN_NODE is in maintenance"
  else echo "$SAFEDRAIN_NODE is up"; exit 75; fi ;;
esac
`

// handMade is a NodePort Service web behind a balancer that only a command knows, with a pod on each of two nodes.
type handMade struct {
	*scene
	dir, n1 string
	web     *corev1.Pod // on n1
}

func newHandMade(t *testing.T, hook string) *handMade {
	t.Helper()
	h := &handMade{scene: newScene(t, 2), dir: t.TempDir()}
	h.n1 = h.nodes[0]
	h.web = h.pod("web", "web-1", h.n1)
	h.pod("web", "web-2", h.nodes[1])
	h.Service("web", func(svc *corev1.Service) { svc.Annotations = map[string]string{lbhooks.AnnotationHook: hook} })
	h.EndpointsReady("web", 2)
	h.remember()
	if err := os.Mkdir(filepath.Join(h.dir, "out"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.file("hook", directoryHook)
	return h
}

func (h *handMade) file(name, text string) string {
	h.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		h.Fatal(err)
	}
	return path
}

// command is the option that names the hook's command.
func (h *handMade) command() string {
	return "--hook-option=exec.command=" + filepath.Join(h.dir, "hook")
}

// calls lists what the command was called for, observations left out.
func (h *handMade) calls() []string {
	data, err := os.ReadFile(filepath.Join(h.dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		h.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if call := strings.TrimSuffix(strings.TrimSpace(line), " "+h.n1); !strings.HasPrefix(call, "prove") {
			out = append(out, call)
		}
	}
	return out
}

func (h *handMade) wantCalls(want ...string) {
	h.Helper()
	if diff := cmp.Diff(want, h.calls()); diff != "" {
		h.Errorf("calls of the command (-want +got):\n%s", diff)
	}
}

// isOut checks whether the balancer has n1 out.
func (h *handMade) isOut(want bool) {
	h.Helper()
	if _, err := os.Stat(filepath.Join(h.dir, "out", h.n1)); (err == nil) != want {
		h.Errorf("out of the balancer: %v, want %t", err, want)
	}
}

// TestC48CommandWithdraws: with a command nothing of a hand-made balancer is unprovable: three observations, then the pods
// go; the way back waits for a Ready pod, and needs the command too.
func TestC48CommandWithdraws(t *testing.T) {
	h := newHandMade(t, "exec")
	h.run("plan", h.n1, "--force").want(h.scene, 3)
	h.run("plan", h.n1, "--force", h.command()).want(h.scene, 0)
	h.run(h.n1, "--force", h.command(), "-o", "json").want(h.scene, 0, "is in maintenance")
	proven, err := os.Stat(filepath.Join(h.dir, "proven"))
	if err != nil {
		t.Fatal(err)
	}
	if at := h.journal.get("evicted web-1").at; at.Before(proven.ModTime()) {
		t.Errorf("evicted at %s, proven at %s", at, proven.ModTime())
	}
	h.gone(h.web)
	h.wantCalls("withdraw")
	h.holds(h.n1, true, false, true)

	h.tainted(h.n1, 1)
	before := h.node(h.n1)
	h.run("uncordon", h.n1).want(h.scene, 1, "nothing changed", h.Namespace+"/web", "--hook-option exec.command=")
	if diff := cmp.Diff(before, h.node(h.n1)); diff != "" {
		t.Errorf("an uncordon that could not put the node back changed it:\n%s", diff)
	}
	back := h.start("uncordon", h.n1, "--wait-timeout=60s", h.command())
	h.Wait("uncordoned", func(context.Context) (bool, string, error) { return !h.node(h.n1).Spec.Unschedulable, "cordoned", nil })
	// It has looked: no pod is coming, so the node stays out, and that is no error.
	back.end(h.scene).want(h.scene, 0, "stays out of exec")
	h.isOut(true)
	h.pod("web", "web-3", h.n1, func(p *corev1.Pod) { p.Annotations[controlplane.ReadyAfter] = "3" })
	h.run("uncordon", h.n1, "--wait-timeout=60s", h.command()).want(h.scene, 0)
	h.journal.get("ready web-3")
	h.wantCalls("withdraw", "restore")
	h.isOut(false)
	h.standsAsBefore(h.n1)
}

// TestCommandKilled: a run that dies by kill -9 after the withdrawal leaves a claim that has it; the same command goes on,
// or uncordon undoes it.
func TestCommandKilled(t *testing.T) {
	for _, then := range []string{"undone", "resumed"} {
		t.Run(then, func(t *testing.T) {
			h := newHandMade(t, "exec")
			h.file("stuck", "")
			b := h.start(h.n1, "--force", "--hook-timeout=60s", h.command())
			h.Wait("the withdrawal", func(context.Context) (bool, string, error) {
				_, err := os.Stat(filepath.Join(h.dir, "out", h.n1))
				return err == nil, "in", err
			})
			b.signal(t, syscall.SIGKILL)
			b.wait(t)
			h.alive(h.web)
			h.isOut(true)
			h.holds(h.n1, true, false, true)
			if then == "resumed" {
				if err := os.Remove(filepath.Join(h.dir, "stuck")); err != nil {
					t.Fatal(err)
				}
				h.run(h.n1, "--force", "--take-over", h.command()).want(h.scene, 0)
				h.gone(h.web)
				h.isOut(true)
				h.pod("web", "web-3", h.n1)
				h.EndpointsReady("web", 2)
			}
			h.run("uncordon", h.n1, "--wait-timeout=30s", h.command()).want(h.scene, 0)
			h.isOut(false)
			h.standsAsBefore(h.n1)
		})
	}
}

// TestCommandRollback: no proof, no eviction; what was withdrawn is put back, and the commands that go on name the hook's.
func TestCommandRollback(t *testing.T) {
	for name, rollback := range map[string]bool{"rolled back": true, "state kept": false} {
		t.Run(name, func(t *testing.T) {
			h := newHandMade(t, "exec")
			h.file("stuck", "")
			args := []string{h.n1, "--force", "--hook-timeout=2s", h.command()}
			if rollback {
				args = append(args, "--rollback")
			}
			e := h.run(args...)
			e.want(h.scene, 5, h.Namespace+"/web is not proven out of exec", h.n1+" is up")
			h.alive(h.web)
			if rollback {
				h.wantCalls("withdraw", "restore")
				h.isOut(false)
				h.standsAsBefore(h.n1)
				return
			}
			e.want(h.scene, 5, "safedrain uncordon "+h.n1+" "+h.command())
			h.isOut(true)
			h.run("uncordon", h.n1, h.command()).want(h.scene, 0)
			h.isOut(false)
			h.standsAsBefore(h.n1)
		})
	}
}

// TestCommandHangs: a command that does not end is ended, and nothing is evicted.
func TestCommandHangs(t *testing.T) {
	h := newHandMade(t, "exec")
	h.file("hook", "#!/bin/sh\necho $$ >\"$(dirname \"$0\")/pid\"\nsleep 300\n")
	started := time.Now()
	h.run(h.n1, "--force", "--rollback", h.command(), "--hook-option=exec.timeout=1s").want(h.scene, 5, "was ended after 1s")
	if took := time.Since(started); took > 100*time.Second { // the command sleeps for 300
		t.Errorf("took %s", took)
	}
	h.alive(h.web)
	h.journal.never("evicted web-1")
}
