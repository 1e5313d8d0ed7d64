package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
)

// What a node waits for before it is back is said on change only.
func TestReturnPending(t *testing.T) {
	pending := func(service, hook, what string, elapsed time.Duration) drain.ReturnPending {
		return drain.ReturnPending{Node: "node-3", Service: service, Hook: hook, For: what, Elapsed: elapsed, Timeout: 5 * time.Minute}
	}
	n := &narrator{}
	var got []string
	for _, ev := range []drain.Event{
		pending("", "", "the node is not Ready", time.Second),
		pending("", "", "the node is not Ready", 2*time.Second),
		pending("ingress/edge", "metallb-l2", "pod edge-x is not Ready", 3*time.Second),
		pending("ingress/edge", "metallb-l2", "kube-proxy on node-3 does not know its pod: 10.0.0.3:30500 says 503", 4*time.Second),
		drain.Returned{Node: "node-3", Service: "ingress/edge", Hook: "metallb-l2", Detail: "label removed; kube-proxy knows its pod: 10.0.0.3:30500 says 200"},
	} {
		for _, l := range n.lines(ev) {
			got = append(got, l.text)
		}
	}
	want := strings.Join([]string{
		"node-3: not back yet: the node is not Ready (timeout 5m)",
		"node-3: ingress/edge not back in metallb-l2 yet: pod edge-x is not Ready (timeout 5m)",
		"node-3: ingress/edge not back in metallb-l2 yet: kube-proxy on node-3 does not know its pod: 10.0.0.3:30500 says 503 (timeout 5m)",
		"node-3: ingress/edge back in metallb-l2: label removed; kube-proxy knows its pod: 10.0.0.3:30500 says 200",
	}, "\n")
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("lines:\n%s\nwant:\n%s", text, want)
	}
}
