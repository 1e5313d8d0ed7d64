package drain

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// checkedHook works a balancer that nothing else knows, and that checks its nodes itself.
type checkedHook struct {
	*fakeHook
	says lbhooks.Proof
}

func (h *checkedHook) Assert(*corev1.Service, lbhooks.Objects) lbhooks.Rotation {
	return lbhooks.Rotation{}
}

func (h *checkedHook) Prove(context.Context, lbhooks.Target) (lbhooks.Proof, error) {
	return h.says, nil
}

type checkedHooks struct {
	fakeHooks
	hook *checkedHook
}

func (h checkedHooks) Hook(name string) (lbhooks.Hook, bool) { return h.hook, name == "fake" }

// surgedWorld is a Service on n1, which is to be drained, and on n2, where its replacement is.
func surgedWorld(t *testing.T) (*run, *checkedHook, view) {
	t.Helper()
	w := newWorld("n1", "n2")
	w.hook.removal = lbhooks.RemovalHook
	w.service("web", "n1", "n2")
	d := &run{Runner: w.runner(t, "r"), opts: options("n1")}
	hook := &checkedHook{fakeHook: w.hook}
	d.Hooks = checkedHooks{fakeHooks{w.hook}, hook}
	snapshot, err := d.loadAgain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d, hook, d.index(snapshot, d.opts.Nodes)
}

var surgedService = guard.Key{Namespace: "web", Name: "web"}

// Whatever is declared of a balancer that only a program works, it is asked whether it sends to the replacement.
func TestReplacementIsUsed(t *testing.T) {
	d, hook, ix := surgedWorld(t)
	for name, tt := range map[string]struct {
		says lbhooks.Proof
		want string
	}{
		"it sends there":  {lbhooks.Proof{Evidence: "UP"}, ""},
		"its check fails": {lbhooks.Proof{Idle: true, Evidence: "DOWN 1/2"}, "fake does not send to n2 for web/web yet: DOWN 1/2"},
		"it is out":       {lbhooks.Proof{Out: true, Evidence: "MAINT"}, "fake does not send to n2 for web/web yet: MAINT"},
	} {
		hook.says = tt.says
		if got := d.unusedBy(t.Context(), ix, surgedService); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A port that cannot be asked leaves kube-proxy its time to learn of the replacement.
func TestReplacementIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, ix := surgedWorld(t)
		on := []string{"n2"}
		if why := d.unknownTo(t.Context(), ix, surgedService, on); !strings.Contains(why, "to learn of its pod") {
			t.Errorf("at once: %q", why)
		}
		<-time.After(proxyLag)
		if why := d.unknownTo(t.Context(), ix, surgedService, on); why != "" {
			t.Errorf("after %s: %q", proxyLag, why)
		}
		if why := d.unknownTo(t.Context(), ix, surgedService, []string{"n3"}); why != "" {
			t.Errorf("a node without an endpoint: %q", why)
		}
	})
}
