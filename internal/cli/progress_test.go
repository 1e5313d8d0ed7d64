package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// events are those of a drain of node-3, with a Service that has to be proven and pods that are held.
func events() []drain.Event {
	pod := func(ns, name string) guard.Key { return guard.Key{Namespace: ns, Name: name} }
	return []drain.Event{
		drain.Planned{Plan: story(true)},
		drain.Cordoned{Node: "node-3"},
		drain.Withdrawing{Node: "node-3", Service: "ingress/edge", Hook: "metallb-l2", Timeout: 30 * time.Second},
		drain.Wave{Node: "node-3", Pods: 9, Waiting: 1},
		drain.ProofPending{Node: "node-3", Service: "ingress/edge", Hook: "metallb-l2", Elapsed: time.Second, Timeout: 30 * time.Second, Evidence: "ServiceL2Status still names node-3"},
		drain.ProofPending{Node: "node-3", Service: "ingress/edge", Hook: "metallb-l2", Elapsed: 2 * time.Second, Timeout: 30 * time.Second, Evidence: "ServiceL2Status still names node-3"},
		drain.PodEvicted{Node: "node-3", Pod: pod("pay", "api-a")},
		drain.PodGone{Node: "node-3", Pod: pod("pay", "api-a")},
		drain.PodEvicted{Node: "node-3", Pod: pod("pay", "api-b"), Deleted: true},
		drain.PodGone{Node: "node-3", Pod: pod("pay", "api-b")},
		drain.Proven{Node: "node-3", Service: "ingress/edge", Hook: "metallb-l2", By: "node-7", After: 300 * time.Millisecond, Settle: 2 * time.Second},
		drain.NotProven{Node: "node-3", Service: "mq/broker", Hook: "none", Accepted: "by flag"},
		drain.PodBlocked{Node: "node-3", Pod: pod("pay", "ledger-1"), By: "budget pay/ledger (0 of 1 allowed)"},
		drain.PodBlocked{Node: "node-3", Pod: pod("pay", "ledger-2"), By: "budget pay/ledger (0 of 1 allowed)"},
		drain.Waiting{
			Node: "node-3", Gone: 8, Total: 10, Elapsed: 40 * time.Second,
			Blocked: []drain.Blocked{{By: "budget pay/ledger (0 of 1 allowed)", Pods: []string{"pay/ledger-1", "pay/ledger-2"}}},
		},
		drain.Wave{Node: "node-3", Pods: 1, After: []string{"ingress/edge"}},
		drain.Warned{Text: "a forged\nline \x1b[2J"},
		drain.Verified{Node: "node-3"},
		drain.Drained{Node: "node-3", Took: 34 * time.Second, Evicted: 10, Stay: 4},
	}
}

func TestPlainProgress(t *testing.T) {
	var both, out, errOut bytes.Buffer
	p := &plainProgress{
		narrator: &narrator{}, out: escaping{tee{&both, &out}}, errOut: escaping{tee{&both, &errOut}},
		now: func() time.Time { return time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC) },
	}
	for _, ev := range events() {
		p.emit(ev)
	}
	p.note("stopping: no new evictions; again to leave at once")
	golden(t, "progress_plain", both.String())
	for _, want := range []string{"node/node-3 cordoned\n", "pod/api-a evicted from pay namespace\n", "pod/api-b deleted from pay namespace\n", "node/node-3 drained\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("stdout lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(both.String(), "\x1b") {
		t.Error("a control character reached the output")
	}
}

// tee writes to both.
type tee struct{ a, b *bytes.Buffer }

func (t tee) Write(p []byte) (int, error) {
	t.a.Write(p)
	return t.b.Write(p)
}

// TestScreen plays the events on a terminal of 80 columns and looks at what stays on it.
func TestScreen(t *testing.T) {
	var raw bytes.Buffer
	const columns = 80
	s := newScreen(&narrator{}, &raw, &raw, columns, true)
	for _, ev := range events() {
		s.emit(ev)
	}
	if n := len(s.status(time.Now())); n > 3 {
		t.Errorf("%d status lines, want at most three", n)
	}
	s.close()
	golden(t, "progress_screen", terminal(raw.String(), columns))
}

// terminal is what stands on a screen in the end: it knows "up n lines" and "clear from here".
func terminal(s string, columns int) string {
	var lines []string
	for len(s) > 0 {
		if rest, ok := strings.CutPrefix(s, "\x1b["); ok {
			n := 0
			for rest[0] >= '0' && rest[0] <= '9' {
				n, rest = n*10+int(rest[0]-'0'), rest[1:]
			}
			if rest[0] == 'A' {
				lines = lines[:len(lines)-n]
			}
			s = rest[1:]
			continue
		}
		text, rest, _ := strings.Cut(s, "\n")
		for len(text) > columns {
			lines, text = append(lines, text[:columns]), text[columns:]
		}
		lines, s = append(lines, text), rest
	}
	return strings.Join(lines, "\n") + "\n"
}
