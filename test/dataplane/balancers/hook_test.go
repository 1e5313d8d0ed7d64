package balancers

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	execcmd "github.com/safedrain/safedrain/pkg/lbhooks/exec"
	httphook "github.com/safedrain/safedrain/pkg/lbhooks/http"
)

// hook is the hook exec or http with the options that a way of a balancer gives it.
func hook(t *testing.T, b Balancer, name string) lbhooks.Hook {
	t.Helper()
	way, ok := b.Traits().Way(name)
	if !ok {
		t.Fatalf("%s has no way %s", b.Traits().Name, name)
	}
	known, prefix := execcmd.Options(), "--hook-option=exec."
	if name == "http" {
		known, prefix = httphook.Options(), "--hook-option=http."
	}
	values := map[string]string{}
	for _, flag := range way.Flags {
		name, value, _ := strings.Cut(strings.TrimPrefix(flag, prefix), "=")
		values[name] = value
	}
	options, err := lbhooks.NewOptions(known, values)
	if err != nil {
		t.Fatal(err)
	}
	if name == "http" {
		return httphook.New(httphook.Name, options, false)
	}
	return execcmd.New(execcmd.Name, options, false)
}

func targetOf(t *testing.T, svc *corev1.Service, node string) lbhooks.Target {
	t.Helper()
	object, err := lab.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lbhooks.Target{Service: svc, Node: object}
}

// TestHook works HAProxy by the worked example, or by a server, as safedrain does: twice each, since every action is
// idempotent.
func TestHook(t *testing.T) {
	needLab(t)
	for _, c := range []struct{ balancer, way string }{{HAProxyHealthCheck, "hook"}, {HAProxyTCP, "hook"}, {NodePort, "hook"}, {HAProxyHealthCheck, "http"}} {
		t.Run(c.balancer+"/"+c.way, func(t *testing.T) {
			b := set.Get(c.balancer)
			svc := app(t, b)
			h, target := hook(t, b, c.way), targetOf(t, svc, "node-2")
			prove := func(out bool) {
				t.Helper()
				proof, err := h.Prove(t.Context(), target)
				if err != nil {
					t.Fatal(err)
				}
				t.Log(proof.Evidence)
				if proof.Out != out {
					t.Errorf("out: %t, want %t: %s", proof.Out, out, proof.Evidence)
				}
			}
			prove(false)
			for range 2 {
				if err := h.Withdraw(t.Context(), target); err != nil {
					t.Fatal(err)
				}
				prove(true)
			}
			if got := answers(t, b, svc, 60); got["node-2"] > 0 || len(got) != 2 {
				t.Errorf("answers by node after node-2 was withdrawn: %v", got)
			}
			for range 2 {
				if err := h.Restore(t.Context(), target); err != nil {
					t.Fatal(err)
				}
				prove(false)
			}
			if got := answers(t, b, svc, 60); got["node-2"] == 0 {
				t.Errorf("answers by node after node-2 was restored: %v", got)
			}
		})
	}
}

// TestSocketFaults shows what the worked example makes of a socket that does not do what it should: no proof, but where
// the socket lies.
func TestSocketFaults(t *testing.T) {
	needLab(t)
	b := set.Get(NodePort)
	svc := app(t, b)
	for name, want := range map[string]struct {
		withdrawFails, proveFails, out bool
		atLeast                        time.Duration
	}{
		"socket-absent":  {withdrawFails: true, proveFails: true},
		"socket-hangs":   {withdrawFails: true, proveFails: true, atLeast: 4 * time.Second},
		"socket-ignores": {},
		"socket-lies":    {out: true},
	} {
		t.Run(name, func(t *testing.T) {
			h, target := hook(t, b, "hook"), targetOf(t, svc, "node-2")
			fault, err := FaultOf(b, name)
			if err != nil {
				t.Fatal(err)
			}
			undo, err := fault.Inject(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			if err := h.Withdraw(t.Context(), target); (err != nil) != want.withdrawFails {
				t.Errorf("withdraw: %v, want an error: %t", err, want.withdrawFails)
			}
			if took := time.Since(started); took < want.atLeast {
				t.Errorf("the socket answered after %s", took)
			}
			proof, err := h.Prove(t.Context(), target)
			if (err != nil) != want.proveFails || proof.Out != want.out {
				t.Errorf("prove: %+v, %v, want out: %t, an error: %t", proof, err, want.out, want.proveFails)
			}
			if shown, err := b.Shown(t.Context(), svc); err != nil || !slices.Contains(shown, "node-2") {
				t.Errorf("HAProxy itself shows %v, %v: want node-2 in rotation", shown, err)
			}
			if err := undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := h.Withdraw(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			if proof, err := h.Prove(t.Context(), target); err != nil || !proof.Out {
				t.Errorf("once the socket works: %+v, %v", proof, err)
			}
			if err := h.Restore(t.Context(), target); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestHookRefuses shows that the worked example proves nothing of a server that HAProxy does not know.
func TestHookRefuses(t *testing.T) {
	needLab(t)
	b := set.Get(NodePort)
	svc := app(t, b)
	h, target := hook(t, b, "hook"), targetOf(t, svc, "node-2")
	target.Node = target.Node.DeepCopy()
	target.Node.Name = "other-2"
	for name, call := range map[string]func() error{
		"withdraw": func() error { return h.Withdraw(t.Context(), target) },
		"prove":    func() error { _, err := h.Prove(t.Context(), target); return err },
		"restore":  func() error { return h.Restore(t.Context(), target) },
	} {
		if err := call(); !errors.Is(err, lbhooks.ErrUnavailable) {
			t.Errorf("%s: %v, want that it cannot work", name, err)
		}
	}
}
