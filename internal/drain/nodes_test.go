package drain

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A node of the run that somebody deletes meanwhile is no matter for the others: they are drained, and it is done.
func TestNodeDeletedWhileAnotherIsDrained(t *testing.T) {
	for name, deleted := range map[string]string{"the one that is being drained": "n1", "one that is still to come": "n2"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2", "n3")
				w.service("lb", "n1", "n2", "n3")
				w.hook.polls = 5
				w.replace(time.Second, "n3")
				w.onEvent = func(e Event) {
					if _, ok := e.(Withdrawing); ok {
						w.api.deleteNode(deleted)
					}
				}
				res := w.runner(t, "r1").Drain(t.Context(), options("n1", "n2"))
				if res.Outcome != Done {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				for _, n := range res.Nodes {
					if n.Deleted != (n.Name == deleted) {
						t.Errorf("node %s: deleted %v", n.Name, n.Deleted)
					}
				}
			})
		})
	}
}

// A mistyped name among several changes nothing on the others.
func TestUncordonOfANameThatIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		if res := w.runner(t, "r1").Drain(t.Context(), options("n1")); res.Outcome != Done {
			t.Fatal(res.Err)
		}
		drained := w.api.node("n1")
		_, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1", "nx"}, WaitTimeout: time.Minute})
		if res.Outcome != Failed || !strings.Contains(res.Err.Error(), `nothing changed: read node "nx"`) {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if diff := sameNode(drained, w.api.node("n1")); diff != "" {
			t.Errorf("n1 changed: %s", diff)
		}
	})
}

// Who may not read nodes could not undo what it sets, and so sets nothing.
func TestNodesThatMayNotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		before := w.api.node("n1")
		w.api.deny = func(c call) bool { return c.verb == "get" && c.what == "nodes/n1" }
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Failed || !strings.Contains(res.Err.Error(), `read node "n1"`) {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" {
			t.Errorf("n1 changed: %s", diff)
		}
	})
}
