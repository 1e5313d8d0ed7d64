package e2e

import (
	"context"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// midway are the steps that last until the test lets the drain go on.
var midway = []string{"proving", "evicting and a pod terminates", "evicting and a budget holds"}

// TestNodeDeleted deletes the Node object while the drain goes on, as an autoscaler does: that is an end, not an error.
func TestNodeDeleted(t *testing.T) {
	for _, name := range midway {
		t.Run(name, func(t *testing.T) {
			s := steps[name](t)
			b := s.reach()
			must(s.Env, s.Client.CoreV1().Nodes().Delete(s.Context(), s.victim, metav1.DeleteOptions{}))
			said, code := b.end()
			if code != 0 {
				t.Errorf("exit code %d, want 0\n%s", code, said)
			}
			wantSaid(t, said, "deleted meanwhile", "node/"+s.victim+" drained")
		})
	}
}

// TestOneOfSeveralDeleted deletes one node of a run: before its turn, while another one is drained, and after its own drain.
func TestOneOfSeveralDeleted(t *testing.T) {
	for name, order := range map[string]struct{ slow, deleted int }{"before its turn": {0, 1}, "after its drain": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := cluster.Env(t)
			nodes := e.Nodes(3)
			for i, node := range nodes {
				e.Pod([]string{"web-0", "web-1", "web-2"}[i], node, labelled(controlplane.AppLabel, "web"))
			}
			e.Service("web")
			e.EndpointsReady("web", 3)
			e.Pod("slow", nodes[order.slow], controlplane.With(map[string]string{controlplane.TerminatesAfter: "never"}))
			b := begin(t, nodes[0], nodes[1], "--force", "--accept-unproven=all")
			if order.slow == 1 {
				b.says(e, "node/"+nodes[0]+" drained")
			}
			b.says(e, nodes[order.slow]+": evicting")
			must(e, e.Client.CoreV1().Nodes().Delete(e.Context(), nodes[order.deleted], metav1.DeleteOptions{}))
			must(e, e.Client.CoreV1().Pods(e.Namespace).Delete(e.Context(), "slow", *metav1.NewDeleteOptions(0)))
			said, code := b.end()
			if code != 0 {
				t.Errorf("exit code %d, want 0\n%s", code, said)
			}
			wantSaid(t, said, "node/"+nodes[0]+" drained", "node/"+nodes[1]+" drained")
			if pods := podsOn(e, nodes[order.slow]); len(pods) != 0 || !getNode(e, nodes[order.slow]).Spec.Unschedulable {
				t.Errorf("the other node is not drained: %d pods\n%s", len(pods), said)
			}
		})
	}
}

// TestNeverTerminates is a pod whose finalizer nobody removes: exit code 4 at the timeout, the pod is named, the rest is
// gone and the state is kept; without the finalizer the same command ends the drain.
func TestNeverTerminates(t *testing.T) {
	s := newStep(t, withFinalizer)
	s.obey()
	said, code := begin(s, s.command("--timeout=8s", "--settle=0s")...).end()
	if code != 4 {
		t.Errorf("exit code %d, want 4\n%s", code, said)
	}
	wantSaid(t, said, s.Namespace+"/batch-0", "safedrain uncordon "+s.victim)
	if pods := podsOn(s.Env, s.victim); len(pods) != 1 || pods[0].Name != "batch-0" {
		t.Errorf("%d pods are left, want batch-0", len(pods))
	}
	s.holds(s.victim, true, true, true)
	kubectl(t, "-n", s.Namespace, "patch", "pod", "batch-0", "--type=merge", `-p={"metadata":{"finalizers":null}}`)
	wantRun(s.Env, 0, []string{"drained"}, s.command()...)
	s.drained()
	s.undo()
}

// TestTimeoutRollback puts back what was set when the time is over; what was evicted stays evicted.
func TestTimeoutRollback(t *testing.T) {
	for _, name := range midway {
		t.Run(name, func(t *testing.T) {
			s := steps[name](t)
			said, code := begin(s, s.command("--timeout=3s", "--rollback")...).end()
			if code != 4 {
				t.Errorf("exit code %d, want 4\n%s", code, said)
			}
			wantSaid(t, said, "roll")
			s.standsAsBefore(s.victim)
		})
	}
}

// TestHookTimeoutRollback is exit code 5: the balancer never lets the node go.
func TestHookTimeoutRollback(t *testing.T) {
	s := steps["proving"](t)
	said, code := begin(s, s.command("--hook-timeout=2s", "--rollback")...).end()
	if code != 5 {
		t.Errorf("exit code %d, want 5\n%s", code, said)
	}
	s.standsAsBefore(s.victim)
	for _, pod := range podsOn(s.Env, s.victim) {
		if pod.Name == "web-0" && pod.DeletionTimestamp == nil {
			return
		}
	}
	t.Errorf("web-0 was evicted without a proof\n%s", said)
}

// TestForeignChange undoes by another hand what the drain needs: it stops with exit code 4 and says who did what, and
// evicts nothing more of the Service. A renewal of the claim finds it, at the latest.
func TestForeignChange(t *testing.T) {
	for name, change := range map[string]struct {
		patch string
		says  string
	}{
		"uncordoned": {`{"spec":{"unschedulable":null}}`, "was uncordoned"},
		"unlabelled": {`{"metadata":{"labels":{"` + lbhooks.ExcludeLabel + `":null}}}`, "lost the label"},
		"unclaimed":  {`{"metadata":{"annotations":{"` + claim.Annotation + `":null}}}`, "removed the claim"},
	} {
		t.Run(name, func(t *testing.T) {
			s := steps["settling"](t)
			b := s.reach()
			kubectl(t, "patch", "node", s.victim, "--type=merge", "-p="+change.patch, "--field-manager=somebody")
			said, code := b.end()
			if code != 4 {
				t.Errorf("exit code %d, want 4\n%s", code, said)
			}
			wantSaid(t, said, change.says)
			if name == "uncordoned" {
				wantSaid(t, said, "somebody") // a removed label or annotation leaves no trace of who removed it
			}
			for _, pod := range podsOn(s.Env, s.victim) {
				if pod.Name == "web-0" && pod.DeletionTimestamp == nil {
					return
				}
			}
			t.Errorf("web-0 was evicted\n%s", said)
		})
	}
}

// TestLiveClaim starts a second run on a node that another one drains. It watches the claim; when that changes, the run
// lives, and the second one is refused and leaves everything to it. Stopped meanwhile, it leaves nothing.
func TestLiveClaim(t *testing.T) {
	s := steps["proving"](t)
	first := s.reach("--hook-timeout=3m")
	second := begin(s, s.command()...)
	second.says(s.Env, "watching for up to")
	third := begin(s, s.command()...)
	third.says(s.Env, "watching for up to")
	third.signal(t, syscall.SIGINT)
	if said, code := third.end(); code != 130 {
		t.Errorf("interrupted while it watched: exit code %d, want 130\n%s", code, said)
	} else {
		wantSaid(t, said, "nothing changed")
	}
	said, code := second.end() // at the renewal of the first one's claim
	if code != 3 {
		t.Errorf("second run: exit code %d, want 3\n%s", code, said)
	}
	wantSaid(t, said, "--take-over")
	s.obey()
	if said, code := first.end(); code != 0 {
		t.Errorf("first run: exit code %d, want 0\n%s", code, said)
	}
	s.drained()
	s.undo()
}

// TestTakeOver takes the claim of a live run: that one stops, the new one ends the drain.
func TestTakeOver(t *testing.T) {
	s := steps["proving"](t)
	first := s.reach("--hook-timeout=3m")
	second := begin(s, s.command("--take-over")...)
	second.says(s.Env, "taking up run")
	s.obey()
	if said, code := second.end(); code != 0 {
		t.Errorf("second run: exit code %d, want 0\n%s", code, said)
	}
	said, code := first.end()
	if code != 4 {
		t.Errorf("first run: exit code %d, want 4\n%s", code, said)
	}
	wantSaid(t, said, "took over")
	s.drained()
	s.undo()
}

// TestUncordonedByUncordon is safedrain's own uncordon while a drain goes on: the drain notices and stops.
func TestUncordonedByUncordon(t *testing.T) {
	s := steps["settling"](t)
	b := s.reach()
	wantRun(s.Env, 0, []string{"uncordoned"}, "uncordon", s.victim)
	started := time.Now()
	said, code := b.end()
	if code != 4 {
		t.Errorf("exit code %d after %s, want 4\n%s", code, time.Since(started), said)
	}
	s.standsAsBefore(s.victim)
	s.Wait("web-0 is left alone", func(ctx context.Context) (bool, string, error) {
		pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, "web-0", metav1.GetOptions{})
		return err == nil && pod.DeletionTimestamp == nil, "evicted", err
	})
}
