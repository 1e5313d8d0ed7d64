package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/safedrain/safedrain/internal/rolling"
	"github.com/safedrain/safedrain/test/controlplane"
)

// rolled is a scene whose nodes are taken through a maintenance that writes down its calls, a line each.
type rolled struct {
	*scene
	calls string
}

func newRolled(t *testing.T, nodes int) *rolled {
	t.Helper()
	return &rolled{scene: newScene(t, nodes), calls: filepath.Join(t.TempDir(), "calls")}
}

// command is the roll of all nodes of the scene.
func (r *rolled) command(run string, flags ...string) []string {
	args := []string{"-l", controlplane.PoolLabel + "=" + r.Namespace, "--rolling", "--uncordon", "--accept-unproven=all", "--wait-timeout=60s"}
	return append(append(args, "--run="+run), flags...)
}

// note is a command that writes down its node.
func (r *rolled) note() string { return "echo $NODE >>" + r.calls }

// called are the nodes that the command was run on so far, in order.
func (r *rolled) called() []string {
	r.Helper()
	text, err := os.ReadFile(r.calls)
	if err != nil && !os.IsNotExist(err) {
		r.Fatal(err)
	}
	return strings.Fields(string(text))
}

// apart keeps the pods of a Deployment on nodes of their own.
func apart(d *appsv1.Deployment) {
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: d.Spec.Selector.MatchLabels},
		}},
	}}
}

// TestRollingResumed takes six nodes through a maintenance, is killed in the middle of a drain, and is resumed by the same
// command: each node has its turn exactly once, and nothing of the roll is left. The same command then begins anew.
func TestRollingResumed(t *testing.T) {
	r := newRolled(t, 6)
	grace := int64(5)
	r.Deployment("p", 3, apart, controlplane.Template(map[string]string{controlplane.TerminatesAfter: "2"}), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TerminationGracePeriodSeconds = &grace
	})
	r.Service("p")
	r.EndpointsReady("p", 3)
	r.remember()
	var empty []string
	for _, n := range r.nodes {
		if len(r.podsOn("p", n)) == 0 {
			empty = append(empty, n)
		}
	}

	b := begin(t, r.command(r.note())...)
	r.Wait("the drain of the fourth node", func(context.Context) (bool, string, error) {
		said := b.said.String()
		return strings.Count(said, " cordoned\n") == 4 && strings.Count(said, " rolled\n") == 3, said, nil
	})
	b.kill()
	first := r.called()
	if diff := cmp.Diff(empty, slices.Sorted(slices.Values(first))); diff != "" {
		t.Fatalf("nodes without endpoints go first (-want +got):\n%s\n%s", diff, b.said)
	}

	e := r.run(r.command(r.note(), "--take-over", "-o", "json")...)
	e.want(r.scene, 0, "going on with roll", "3 done, 3 to go", "once more after an earlier run")
	all := r.called()
	if diff := cmp.Diff(r.nodes, slices.Sorted(slices.Values(all))); diff != "" {
		t.Errorf("each node has one turn (-want +got):\n%s", diff)
	}
	var report rolling.Report
	if err := json.Unmarshal([]byte(e.stdout), &report); err != nil {
		t.Fatalf("stdout is no report: %v\n%s", err, e.stdout)
	}
	if report.Outcome != "done" || !report.Resumed || len(report.Nodes) != 6 || !report.Nodes[0].Before || report.Nodes[5].Step != rolling.Done {
		t.Errorf("report: %+v", report)
	}
	r.standsAsBefore(r.nodes...)
	if ready := r.PodsReady("p", 3); len(ready) != 3 {
		t.Errorf("%d pods", len(ready))
	}

	next := r.run(r.command("true", "--plan")...)
	next.want(r.scene, 0)
	if !strings.Contains(next.stdout, "6 nodes, at most 1 at once: all can be drained") || !strings.Contains(next.stdout, r.Namespace+"/p 2 of 3") {
		t.Errorf("the plan of the next roll:\n%s", next.stdout)
	}
}

// TestRollingStopsAtAFailure: the command fails on the second node. The roll stops there, with every Service covered; the
// node stays drained. Another command does not guess whether it goes on: told so, it takes up where the first one stopped,
// and one that hangs is ended and stops the roll likewise.
func TestRollingStopsAtAFailure(t *testing.T) {
	r := newRolled(t, 3)
	r.Deployment("p", 3)
	r.Service("p")
	r.EndpointsReady("p", 3)
	r.remember()
	fails := r.note() + "; test $(wc -l <" + r.calls + ") -lt 2 || { echo the disk is full; exit 7; }"
	e := r.run(r.command(fails, "-o", "json")...)
	e.want(r.scene, 4, "the command failed: exit code 7", "| the disk is full", "1 of 3 nodes done", "continue", "undo")
	calls := r.called()
	if len(calls) != 2 {
		t.Fatalf("calls: %v\n%s", calls, e.stderr)
	}
	var report rolling.Report
	if err := json.Unmarshal([]byte(e.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if n := report.Nodes[1]; report.Outcome != "unfinished" || n.Step != rolling.Failed || n.Command.ExitCode != 7 || n.Command.Output != "the disk is full\n" {
		t.Errorf("report: %s", e.stdout)
	}
	var parts []string
	for _, p := range report.Steps {
		parts = append(parts, p.Node+" "+p.Name+" "+p.Outcome)
	}
	want := []string{calls[0] + " drain done", calls[0] + " run done", calls[0] + " return done", calls[0] + " cover done", calls[1] + " drain done", calls[1] + " run failed"}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Errorf("steps of the report (-want +got):\n%s", diff)
	}
	failed := calls[1]
	r.holds(failed, true, false, true)
	r.EndpointsReady("p", 3) // elsewhere
	if left := r.podsOn("p", failed); len(left) > 0 {
		t.Errorf("pods on %s: %v", failed, left)
	}

	r.run(r.command(r.note())...).want(r.scene, 3, "is unfinished: 1 of these 3 nodes are done", "--unfinished=resume")
	hung := r.run(r.command(r.note()+"; sleep 120 & sleep 120", "--unfinished=resume", "--run-timeout=1s")...)
	hung.want(r.scene, 4, "the command failed: ended after 1s (--run-timeout)", "1 of 3 nodes done", "node/"+failed+" failed, cordoned")
	if hung.took > time.Minute {
		t.Errorf("it took %s to end a command that hangs", hung.took)
	}
	r.holds(failed, true, false, true)
	r.run(r.command(r.note(), "--unfinished=resume")...).want(r.scene, 0, "going on with roll")
	calls = r.called()
	if len(calls) != 5 || calls[2] != failed || calls[3] != failed || calls[4] == calls[0] || calls[4] == failed {
		t.Errorf("calls: %v, want the one that failed twice more and then the third node", calls)
	}
	for _, n := range r.nodes {
		r.holds(n, false, false, false)
	}
}

// TestRollingAtOnce: two nodes at once where they do not depend on each other, and never the two that have the last
// endpoints of a Service, whatever is forced.
func TestRollingAtOnce(t *testing.T) {
	r := newRolled(t, 5)
	a, b := r.nodes[0], r.nodes[1]
	for _, name := range []string{a, b} {
		r.patchNode(name, `{"metadata":{"labels":{"test.safedrain.dev/only":"true"}}}`, "test")
	}
	r.Deployment("p", 2, apart, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector["test.safedrain.dev/only"] = "true"
	})
	r.Service("p")
	r.EndpointsReady("p", 2)
	most, both := 0, false
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = wait.PollUntilContextCancel(ctx, pollAway, true, func(ctx context.Context) (bool, error) {
			away := r.cordoned(ctx)
			most = max(most, len(away))
			both = both || slices.Contains(away, a) && slices.Contains(away, b)
			return false, nil
		})
	}()
	e := r.run(r.command("sleep 1; "+r.note(), "--max-unavailable=40%", "--force-unsafe=all")...)
	cancel()
	<-done
	e.want(r.scene, 0, "with both away "+r.Namespace+"/p would have no endpoint left")
	if most != 2 || both {
		t.Errorf("at most %d nodes were away at once, want 2; the two that share the last endpoints: %v\n%s", most, both, e.stderr)
	}
	if diff := cmp.Diff(r.nodes, slices.Sorted(slices.Values(r.called()))); diff != "" {
		t.Errorf("each node has one turn (-want +got):\n%s", diff)
	}
}

const pollAway = 50 * time.Millisecond

// cordoned lists the nodes of the scene that take no pods.
func (r *rolled) cordoned(ctx context.Context) []string {
	list, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: controlplane.PoolLabel + "=" + r.Namespace})
	if err != nil {
		return nil
	}
	var out []string
	for i := range list.Items {
		if list.Items[i].Spec.Unschedulable {
			out = append(out, list.Items[i].Name)
		}
	}
	return out
}

// TestRollingInterrupted: Ctrl-C lets the command finish and begins nothing new; the same command goes on at once, and runs
// it nowhere twice. With --rollback a node whose command fails is put back. With --surge=all a workload has its replacement
// before its pod goes, the only one or not, and one that can have none and has others left goes without.
func TestRollingInterrupted(t *testing.T) {
	r := newRolled(t, 2)
	solo := &soloShop{scene: r.scene, pod: r.Deployment("web", 1, controlplane.Template(map[string]string{controlplane.ReadyAfter: "1"}))[0]}
	r.Service("web")
	r.Deployment("api", 2, apart)
	r.Service("api")
	r.EndpointsReady("web", 1)
	r.EndpointsReady("api", 2)
	r.remember()
	solo.was = solo.deployment()
	r.run(r.command("exit 9", "--surge=all", "--rollback")...).want(r.scene, 4, "exit code 9", "0 of 2 nodes done")
	r.standsAsBefore(r.nodes...)
	r.EndpointsReady("api", 2)

	b := begin(t, r.command("sleep 2; "+r.note(), "--surge=all")...)
	b.says(r.Env, "running the command")
	b.signal(t, syscall.SIGINT)
	said, code := b.end()
	if code != 130 || len(r.called()) != 1 {
		t.Fatalf("exit code %d, calls %v\n%s", code, r.called(), said)
	}
	wantSaid(t, said, "returning", "continue", "undo")
	e := r.run(r.command("sleep 2; "+r.note(), "--surge=all", "-o", "json")...)
	e.want(r.scene, 0, "going on with roll", "0 done, 2 to go", "starting one more replica of deployment "+r.Namespace+"/web: replicas 1 -> 2")
	var report rolling.Report
	if err := json.Unmarshal([]byte(e.stdout), &report); err != nil {
		t.Fatalf("stdout is no report: %v\n%s", err, e.stdout)
	}
	surges := report.Nodes[1].Drain.Surges
	if len(surges) != 2 || surges[0].Name != "api" || !strings.Contains(surges[0].Reason, "a further pod fits nowhere") || !surges[1].Possible() {
		t.Errorf("surges on the node with both: %+v", surges)
	}
	r.journal.inOrder("ready "+r.PodsReady("web", 1)[0].Name, "evicted "+solo.pod.Name)
	solo.asBefore()
	if diff := cmp.Diff(r.nodes, slices.Sorted(slices.Values(r.called()))); diff != "" {
		t.Errorf("each node has one turn (-want +got):\n%s", diff)
	}
	r.standsAsBefore(r.nodes...)
}

// TestRollingRefused: what guard refuses is said of all nodes at once, and nothing is changed.
func TestRollingRefused(t *testing.T) {
	r := newRolled(t, 2)
	r.pod("p", "p-1", r.nodes[0])
	r.Service("p")
	r.EndpointsReady("p", 1)
	r.remember()
	e := r.run(r.command(r.note())...)
	e.want(r.scene, 3, "1 of 2 nodes would be refused, nothing changed", r.nodes[0], "--force")
	if calls := r.called(); len(calls) > 0 {
		t.Errorf("the command was run on %v", calls)
	}
	r.standsAsBefore(r.nodes...)
	plan := r.run(r.command(r.note(), "--plan", "-o", "json")...)
	plan.want(r.scene, 3)
	var order struct {
		Kind  string
		Nodes []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(plan.stdout), &order); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(order.Kind, order.Nodes); got != fmt.Sprintf("RollPlan[{%s} {%s}]", r.nodes[1], r.nodes[0]) {
		t.Errorf("the plan: %s", got)
	}
}

// TestRollingAlone: of two rolls of the same nodes that begin at the same time one is refused and says so, and no node has two
// turns. A node that is deleted before its turn is left out.
func TestRollingAlone(t *testing.T) {
	r := newRolled(t, 4)
	r.remember()
	command := r.command("sleep 2; " + r.note())
	rolls := []*begun{begin(t, command...), begin(t, command...)}
	r.Wait("the command on the first node", func(context.Context) (bool, string, error) {
		said := rolls[0].said.String() + rolls[1].said.String()
		return strings.Contains(said, "running the command"), said, nil
	})
	if err := r.Client.CoreV1().Nodes().Delete(t.Context(), r.nodes[3], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ended := map[int]string{}
	for _, b := range rolls {
		said, code := b.end()
		ended[code] += said
	}
	if ended[0] == "" || ended[3] == "" {
		t.Fatalf("exit codes and what was said: %v, want one 0 and one 3", ended)
	}
	wantSaid(t, ended[0], r.nodes[3]+": not there any more")
	wantSaid(t, ended[3], "the roll is refused, nothing changed: ", "roll ", " of ")
	if diff := cmp.Diff(r.nodes[:3], r.called()); diff != "" {
		t.Errorf("each node that is there has one turn (-want +got):\n%s", diff)
	}
	r.standsAsBefore(r.nodes[:3]...)
}
