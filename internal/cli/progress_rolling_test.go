package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/rolling"
	"github.com/safedrain/safedrain/pkg/guard"
)

// TestRollTable: the table has the nodes under way, between those just done and those next, and says how far the roll is.
func TestRollTable(t *testing.T) {
	var out, errOut bytes.Buffer
	table := newRollTable(&narrator{}, &out, &errOut, 60, true)
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	table.now = func() time.Time { return now }
	order := []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"}
	table.moved(rolling.Began{Roll: "r", Order: order, AtOnce: 1, Done: []string{"n0"}})
	table.moved(rolling.Moved{Node: "n1", Step: rolling.Done, Took: 40 * time.Second})
	table.moved(rolling.Moved{Node: "n2", Step: rolling.Draining})
	table.emit(drain.Wave{Node: "n2", Pods: 2})
	table.emit(drain.PodGone{Node: "n2", Pod: guard.Key{Namespace: "shop", Name: "web-\x1b[31m"}})
	now = now.Add(12 * time.Second)
	table.mu.Lock()
	got := strings.Join(table.lines(false), "\n")
	table.mu.Unlock()
	want := `NODE   STEP       TIME
n1     done       40s
n2     draining   12s    1 of 2 pods gone
n3     waiting
n4     waiting
n5     waiting
n6     waiting
2 of 9 nodes done, about 4m40s left by the 40s of those done here`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	table.close()
	if shown := errOut.String(); !strings.Contains(shown, "n8     waiting\n") || strings.Contains(shown, "\x1b[31m") {
		t.Errorf("at the end:\n%s", shown)
	}
}
