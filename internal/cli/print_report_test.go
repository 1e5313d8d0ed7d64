package cli

import (
	"testing"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
)

// TestInterruptedText: a run that was undone has changed something all the same when a pod of the node was evicted, be it
// gone yet or not.
func TestInterruptedText(t *testing.T) {
	for name, test := range map[string]struct {
		node drain.NodeState
		want string
	}{
		"nothing":             {want: "interrupted, nothing changed"},
		"cordoned":            {node: drain.NodeState{Cordoned: true}, want: "interrupted after 9s"},
		"a pod is gone":       {node: drain.NodeState{PodsTotal: 2, PodsGone: 1}, want: "interrupted after 9s"},
		"a pod is on its way": {node: drain.NodeState{PodsTotal: 2, Evicted: 1}, want: "interrupted after 9s"},
	} {
		t.Run(name, func(t *testing.T) {
			result := &drain.Result{Outcome: drain.Interrupted, Nodes: []drain.NodeState{test.node}, Took: 9 * time.Second}
			if got := interruptedText(result); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
