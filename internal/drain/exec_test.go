package drain

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// balancerScript works a balancer that is a directory: out/NODE.SERVICE is there while the node is out for the Service.
// The file stuck makes it never leave, the file sick makes restore fail.
const balancerScript = `#!/bin/sh
dir=$(dirname "$0")
echo "$1 $SAFEDRAIN_NODE $SAFEDRAIN_SERVICE $SAFEDRAIN_RUN" >>"$dir/calls"
mark=$dir/out/$SAFEDRAIN_NODE.$SAFEDRAIN_SERVICE_NAME
case $1 in
withdraw) : >"$mark" ;;
prove)
  if [ -e "$mark" ] && [ ! -e "$dir/stuck" ]; then echo "$SAFEDRAIN_NODE is in maintenance"; else echo "$SAFEDRAIN_NODE is up"; exit 75; fi ;;
restore)
  if [ -e "$dir/sick" ]; then echo "socket: no such file" >&2; exit 1; fi
  rm -f "$mark" ;;
esac
`

// execWorld is a cluster whose Services are behind a balancer that a real command works.
type execWorld struct {
	*world
	t   *testing.T
	dir string
}

func newExecWorld(t *testing.T, nodes ...string) *execWorld {
	t.Helper()
	w := &execWorld{newWorld(nodes...), t, t.TempDir()}
	if err := os.Mkdir(filepath.Join(w.dir, "out"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.file("hook", balancerScript)
	return w
}

func (w *execWorld) file(name, text string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// behind adds a Service whose annotation names the hook.
func (w *execWorld) behind(hook, name string, on ...string) *corev1.Service {
	w.service(name, on...)
	svc := w.api.services[len(w.api.services)-1]
	svc.Annotations = map[string]string{lbhooks.AnnotationHook: hook}
	return svc
}

// with is a runner whose hooks are configured in this way.
func (w *execWorld) with(run string, f hookset.Flags) *Runner {
	w.t.Helper()
	settings, err := hookset.ReadSettings(f)
	if err != nil {
		w.t.Fatal(err)
	}
	r := w.runner(w.t, run)
	hooks := hookset.New(hookset.Deps{Kubernetes: r.Client, Settings: settings})
	r.Hooks = hooks
	r.Load = func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
		return cluster.Load(ctx, &cluster.Clients{Kubernetes: r.Client.(*kubernetes.Clientset)}, nil, cluster.Scope{Nodes: nodes})
	}
	return r
}

// configured is a runner with the command for the hook exec.
func (w *execWorld) configured(run string) *Runner {
	return w.with(run, hookset.Flags{Options: []string{"exec.command=" + filepath.Join(w.dir, "hook")}})
}

// calls lists what the command was called for, observations left out.
func (w *execWorld) calls() []string {
	data, err := os.ReadFile(filepath.Join(w.dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return slices.DeleteFunc(lines, func(s string) bool { return s == "" || strings.HasPrefix(s, "prove ") })
}

// out lists what the balancer has out.
func (w *execWorld) out() []string {
	entries, err := os.ReadDir(filepath.Join(w.dir, "out"))
	if err != nil {
		w.t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (w *execWorld) wantOut(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), w.out()); diff != "" {
		w.t.Errorf("out of the balancer, -want +got\n%s", diff)
	}
}

func (w *execWorld) drained(run string) {
	w.t.Helper()
	if res := w.configured(run).Drain(w.t.Context(), options("n1")); res.Outcome != Done {
		w.t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
	}
}

var restoreN1 = RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute}

// Each Service is withdrawn once, before any of its pods goes, and put back once a pod of it is Ready on the node again.
func TestExecDrainAndUncordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExecWorld(t, "n1", "n2")
		w.behind("exec", "lb", "n1", "n2")
		w.behind("exec", "api", "n1", "n2")
		w.behind("none", "other", "n2")
		before := w.api.node("n1")
		w.api.removed = func(p *corev1.Pod) *corev1.Pod {
			if mark := "n1." + p.Labels["app"]; !slices.Contains(w.out(), mark) {
				t.Errorf("pod %s went before %s", p.Name, mark)
			}
			return nil
		}
		w.drained("r1")
		if diff := cmp.Diff([]string{"withdraw n1 web/api r1", "withdraw n1 web/lb r1"}, sortedText(w.calls())); diff != "" {
			t.Errorf("calls, -want +got\n%s", diff)
		}
		w.wantOut("n1.api", "n1.lb")
		if _, ok := w.api.node("n1").Labels[lbhooks.ExcludeLabel]; ok {
			t.Error("labelled")
		}
		// One comes back after a while, of the other nothing does.
		p := w.pod("lb-back", "n1", "lb")
		unready := p.DeepCopy()
		unready.Status.Conditions[0].Status = corev1.ConditionFalse
		w.api.addPod(unready)
		time.AfterFunc(20*time.Second, func() { w.wantOut("n1.api", "n1.lb"); w.api.addPod(p) })
		out, res := w.configured("r2").Uncordon(t.Context(), restoreN1)
		if res.Outcome != Done || len(out[0].Services) != 2 || out[0].Services[0].Back || !out[0].Services[1].Back {
			t.Fatalf("outcome %d (%v), %+v", res.Outcome, res.Err, out)
		}
		w.wantOut("n1.api")
		w.pod("api-back", "n1", "api")
		if _, res = w.configured("r3").Uncordon(t.Context(), restoreN1); res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		w.wantOut()
		want := []string{"restore n1 web/lb r2", "restore n1 web/api r3"}
		if diff := cmp.Diff(want, w.calls()[2:]); diff != "" {
			t.Errorf("calls, -want +got\n%s", diff)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" {
			t.Errorf("not as it was: %s", diff)
		}
	})
}

// A run that ends anywhere between the claim and the last eviction leaves a claim by which uncordon undoes everything.
func TestExecRunDies(t *testing.T) {
	for name, dies := range map[string]func(Event) bool{
		"as it withdraws": func(e Event) bool { _, ok := e.(Withdrawing); return ok },
		"unproven":        func(e Event) bool { _, ok := e.(ProofPending); return ok },
		"proven":          func(e Event) bool { _, ok := e.(Proven); return ok },
	} {
		for _, then := range []string{"uncordon", "resume"} {
			t.Run(name+", then "+then, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newExecWorld(t, "n1", "n2")
					w.behind("exec", "lb", "n1", "n2")
					before := w.api.node("n1")
					w.file("stuck", "")
					ctx, kill := context.WithCancel(t.Context())
					w.onEvent = func(e Event) {
						if dies(e) {
							kill()
						} else if _, ok := e.(ProofPending); ok {
							_ = os.Remove(filepath.Join(w.dir, "stuck"))
						}
					}
					if res := w.configured("r1").Drain(ctx, options("n1")); res.Outcome != Interrupted || len(w.api.calls("evict")) > 0 {
						t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
					}
					w.onEvent = nil
					_ = os.Remove(filepath.Join(w.dir, "stuck"))
					if c := claimOf(t, w.world, "n1"); !c.Has("hook:exec:web/lb") {
						t.Fatalf("the claim knows of no withdrawal: %v", c)
					}
					if then == "resume" {
						w.drained("r2")
						w.wantOut("n1.lb")
						w.pod("back", "n1", "lb")
					}
					if _, res := w.configured("r3").Uncordon(t.Context(), restoreN1); res.Outcome != Done {
						t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
					}
					w.wantOut()
					if diff := sameNode(before, w.api.node("n1")); diff != "" {
						t.Errorf("not as it was: %s", diff)
					}
				})
			})
		}
	}
}

// A proof that does not come: the times are those of the rule; --rollback undoes the withdrawal.
func TestExecRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExecWorld(t, "n1", "n2")
		w.behind("edge", "lb", "n1", "n2")
		w.file("stuck", "")
		config := w.file("config", fmt.Sprintf("apiVersion: safedrain.dev/v1alpha1\nkind: HookConfig\nhooks:\n"+
			"- {name: edge, type: exec, options: {command: %s/hook}}\nrules:\n- {names: [lb], timeout: 7s, settle: 11s}\n", w.dir))
		before := w.api.node("n1")
		opts := options("n1")
		opts.Rollback = true
		start := time.Now()
		res := w.with("r1", hookset.Flags{Config: config}).Drain(t.Context(), opts)
		if took := time.Since(start); res.Outcome != HookFailed || took < 7*time.Second || took > 9*time.Second {
			t.Fatalf("outcome %d after %s: %v", res.Outcome, took, res.Err)
		}
		if !strings.Contains(res.Err.Error(), "n1 is up") {
			t.Errorf("%v: without the evidence", res.Err)
		}
		w.wantOut()
		if diff := sameNode(before, w.api.node("n1")); diff != "" {
			t.Errorf("not as it was: %s", diff)
		}
		// The typed timeout wins over the rule's.
		opts.HookTimeout, opts.HookTimeoutTyped = 3*time.Second, true
		start = time.Now()
		if res = w.with("r2", hookset.Flags{Config: config}).Drain(t.Context(), opts); res.Outcome != HookFailed || time.Since(start) > 5*time.Second {
			t.Errorf("outcome %d after %s: %v", res.Outcome, time.Since(start), res.Err)
		}
		_ = os.Remove(filepath.Join(w.dir, "stuck"))
		start = time.Now()
		if res = w.with("r3", hookset.Flags{Config: config}).Drain(t.Context(), opts); res.Outcome != Done || time.Since(start) < 11*time.Second {
			t.Errorf("outcome %d after %s, want the settle time of 11s: %v", res.Outcome, time.Since(start), res.Err)
		}
		if p := eventsOf[Proven](w.world); len(p) != 1 || p[0].Settle != 11*time.Second || p[0].Evidence != "n1 is in maintenance" {
			t.Errorf("proven %+v", p)
		}
	})
}

// Uncordon without the hook that withdrew the node says what is needed, and changes nothing, on no node.
func TestExecUncordonNotConfigured(t *testing.T) {
	for name, test := range map[string]struct {
		hook string
		says string
	}{
		"exec":   {"exec", "--hook-option exec.command="},
		"a name": {"edge", `there is no hook "edge" here: give the --config`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newExecWorld(t, "n0", "n1", "n2")
				w.behind(test.hook, "lb", "n1", "n2")
				config := w.file("config", fmt.Sprintf("apiVersion: safedrain.dev/v1alpha1\nkind: HookConfig\nhooks:\n"+
					"- {name: exec, options: {command: %[1]s/hook}}\n- {name: edge, type: exec, options: {command: %[1]s/hook}}\n", w.dir))
				full := hookset.Flags{Config: config}
				w.api.setNode("n0", func(n *corev1.Node) { n.Spec.Unschedulable = true })
				if res := w.with("r1", full).Drain(t.Context(), options("n1")); res.Outcome != Done {
					t.Fatal(res.Err)
				}
				w.pod("back", "n1", "lb")
				was := []*corev1.Node{w.api.node("n0"), w.api.node("n1")}
				both := RestoreOptions{Nodes: []string{"n0", "n1"}, WaitTimeout: time.Minute}
				_, res := w.with("r2", hookset.Flags{}).Uncordon(t.Context(), both)
				if res.Outcome != Failed || !strings.Contains(res.Err.Error(), "nothing changed") || !strings.Contains(res.Err.Error(), test.says) || !strings.Contains(res.Err.Error(), "web/lb") {
					t.Errorf("outcome %d: %v; want %q", res.Outcome, res.Err, test.says)
				}
				if diff := cmp.Diff(was, []*corev1.Node{w.api.node("n0"), w.api.node("n1")}); diff != "" {
					t.Errorf("changed: %s", diff)
				}
				w.wantOut("n1.lb")
				if _, res = w.with("r3", full).Uncordon(t.Context(), both); res.Outcome != Done {
					t.Errorf("outcome %d: %v", res.Outcome, res.Err)
				}
				w.wantOut()
			})
		})
	}
	t.Run("the Service is gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newExecWorld(t, "n1", "n2")
			w.behind("exec", "lb", "n1", "n2")
			w.drained("r1")
			w.api.services = nil
			out, res := w.with("r2", hookset.Flags{}).Uncordon(t.Context(), restoreN1)
			if res.Outcome != Done || len(out[0].Warnings) != 1 || !strings.Contains(out[0].Warnings[0], "web/lb is gone") {
				t.Errorf("outcome %d (%v), %+v", res.Outcome, res.Err, out)
			}
		})
	})
}

// A drain whose hook is not configured is refused, and changes nothing.
func TestExecDrainNotConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExecWorld(t, "n1", "n2")
		w.behind("exec", "lb", "n1", "n2")
		before := w.api.node("n1")
		opts := options("n1")
		opts.Flags.AcceptUnproven = []string{"all"}
		res := w.with("r1", hookset.Flags{}).Drain(t.Context(), opts)
		if res.Outcome != Refused || !strings.Contains(res.Err.Error(), "web/lb") {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" {
			t.Errorf("changed: %s", diff)
		}
		// Accepted by its name nothing is withdrawn, so that an uncordon needs no hook either.
		opts.Flags.AcceptUnproven = []string{"web/lb"}
		if res = w.with("r2", hookset.Flags{}).Drain(t.Context(), opts); res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		if _, res = w.with("r3", hookset.Flags{}).Uncordon(t.Context(), restoreN1); res.Outcome != Done {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
	})
}

// A restore that fails is the hook's failure; the claim stays, and the next uncordon does it.
func TestExecRestoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExecWorld(t, "n1", "n2")
		w.behind("exec", "lb", "n1", "n2")
		w.drained("r1")
		w.pod("back", "n1", "lb")
		w.file("sick", "")
		_, res := w.configured("r2").Uncordon(t.Context(), restoreN1)
		if res.Outcome != HookFailed || !strings.Contains(res.Err.Error(), "socket: no such file") || w.api.node("n1").Spec.Unschedulable {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if c := claimOf(t, w.world, "n1"); c == nil || !c.Has("hook:exec:web/lb") {
			t.Errorf("the withdrawal is forgotten: %v", c)
		}
		_ = os.Remove(filepath.Join(w.dir, "sick"))
		if _, res = w.configured("r3").Uncordon(t.Context(), restoreN1); res.Outcome != Done {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		w.wantOut()
	})
}

// A Service of policy Cluster is put back when the node is Ready, not before.
func TestExecClusterPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExecWorld(t, "n1", "n2")
		svc := w.behind("exec", "lb", "n1", "n2")
		svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
		w.drained("r1")
		w.wantOut("n1.lb")
		ready := func(s corev1.ConditionStatus) {
			w.api.setNode("n1", func(n *corev1.Node) { n.Status.Conditions[0].Status = s })
		}
		ready(corev1.ConditionFalse)
		time.AfterFunc(30*time.Second, func() { w.wantOut("n1.lb"); ready(corev1.ConditionTrue) })
		if _, res := w.configured("r2").Uncordon(t.Context(), restoreN1); res.Outcome != Done {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		w.wantOut()
	})
}

// While uncordon waits for a pod somebody drains the node again: nobody may send to it then.
func TestExecUncordonLosesTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExecWorld(t, "n1", "n2")
		w.behind("exec", "lb", "n1", "n2")
		w.drained("r1")
		p := w.pod("back", "n1", "lb")
		unready := p.DeepCopy()
		unready.Status.Conditions[0].Status = corev1.ConditionFalse
		w.api.addPod(unready)
		drained := make(chan struct{})
		time.AfterFunc(9*time.Second, func() {
			defer close(drained)
			opts := options("n1")
			opts.TakeOver = true
			if res := w.configured("r3").Drain(t.Context(), opts); res.Outcome != Done {
				t.Errorf("the second drain: outcome %d: %v", res.Outcome, res.Err)
			}
			w.api.addPod(p)
		})
		_, res := w.configured("r2").Uncordon(t.Context(), restoreN1)
		<-drained
		if res.Outcome == Done {
			t.Error("done, although another run has the node")
		}
		w.wantOut("n1.lb")
		if !w.api.node("n1").Spec.Unschedulable {
			t.Error("uncordoned")
		}
	})
}
