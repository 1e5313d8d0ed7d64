package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/test/controlplane"
)

// TestRollingKilledInTheCommand: a roll that is killed while its command runs is resumed by the same command. Nobody can know
// how far the command came, so it is run again there, and once everywhere else.
func TestRollingKilledInTheCommand(t *testing.T) {
	r := newRolled(t, 2)
	r.remember()
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run := r.note() + "; while [ -e " + hold + " ]; do sleep 0.1; done"
	b := begin(t, r.command(run)...)
	r.Wait("the command on the first node", func(context.Context) (bool, string, error) { return len(r.called()) == 1, b.said.String(), nil })
	b.kill()
	first := r.called()[0]
	r.holds(first, true, false, true)
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	r.run(r.command(run, "--take-over")...).want(r.scene, 0, "going on with roll", "0 done, 2 to go", first+": running the command, once more after an earlier run")
	other := r.nodes[1-slices.Index(r.nodes, first)]
	if diff := cmp.Diff([]string{first, first, other}, r.called()); diff != "" {
		t.Errorf("calls of the command (-want +got):\n%s", diff)
	}
	r.standsAsBefore(r.nodes...)
}

// TestRollingKilledBeforeItIsCovered: a roll that is killed between the way back of a node and the moment at which its Services
// are covered again is resumed by the same command. It waits for that moment before the next node, and runs its command nowhere
// twice.
func TestRollingKilledBeforeItIsCovered(t *testing.T) {
	r := newRolled(t, 2)
	r.Deployment("p", 2, apart, controlplane.Template(map[string]string{controlplane.ReadyAfter: "15"}))
	r.Service("p")
	r.EndpointsReady("p", 2)
	r.remember()
	was := map[string]string{}
	for _, n := range r.nodes {
		was[n] = r.podsOn("p", n)[0]
	}
	b := begin(t, r.command(r.note())...)
	b.says(r.Env, "not covered again yet: "+r.Namespace+"/p has 1 of 2 endpoints")
	b.kill()
	if calls := r.called(); len(calls) != 1 {
		t.Fatalf("calls: %v\n%s", calls, b.said)
	}
	first := r.called()[0]
	second := r.nodes[1-slices.Index(r.nodes, first)]
	r.holds(first, false, false, false)
	r.run(r.command(r.note(), "--take-over")...).want(r.scene, 0, "going on with roll", "0 done, 2 to go", first+": returning, once more after an earlier run")
	if diff := cmp.Diff([]string{first, second}, r.called()); diff != "" {
		t.Errorf("calls of the command (-want +got):\n%s", diff)
	}
	came := r.podsOn("p", first)
	if len(came) != 1 {
		t.Fatalf("pods on %s: %v", first, came)
	}
	r.journal.inOrder("evicted "+was[first], "ready "+came[0], "evicted "+was[second])
	r.EndpointsReady("p", 2)
	r.standsAsBefore(r.nodes...)
}
