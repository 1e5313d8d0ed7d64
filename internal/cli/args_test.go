package cli

import (
	"strings"
	"testing"
)

// TestCompleteNodes: a shell is offered the nodes that begin with what was typed, and nothing else without a cluster.
func TestCompleteNodes(t *testing.T) {
	l := newLive(t, "before")
	for typed, want := range map[string][]string{
		"node-":    {"node-1", "node-2", "node-3"},
		"node-2":   {"node-2"},
		"nowhere-": nil,
	} {
		if code := l.run(t, nil, "__complete", "plan", typed); code != 0 {
			t.Fatalf("exit code %d: %s", code, l.errOut.String())
		}
		lines := strings.Fields(l.out.String())
		if got := lines[:len(lines)-1]; strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}
