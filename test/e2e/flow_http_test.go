package e2e

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// balancerServer is an HTTPS server that works a balancer. Every first try of a key fails with 503.
type balancerServer struct {
	*httptest.Server
	stuck bool

	mu     sync.Mutex
	out    map[string]bool
	tried  map[string]bool // by key
	done   []string        // "withdraw n1 key", each key once
	proofs int
}

func newBalancerServer(t *testing.T) *balancerServer {
	b := &balancerServer{out: map[string]bool{}, tried: map[string]bool{}}
	b.Server = httptest.NewTLSServer(b)
	t.Cleanup(b.Close)
	return b
}

func (b *balancerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request protocol.Request
	if r.Header.Get("Authorization") != "Bearer secret" || json.NewDecoder(r.Body).Decode(&request) != nil {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.tried[request.Key]
	b.tried[request.Key] = true
	node := request.Node.Name
	switch request.Action {
	case protocol.Prove:
		b.proofs++
		out := b.out[node] && !b.stuck && b.proofs > 3
		fmt.Fprintf(w, `{"apiVersion":"safedrain.dev/v1alpha1","kind":"HookAnswer","out":%t,"evidence":"pool edge: %s out %t","by":"the others"}`, out, node, out)
		return
	case protocol.Withdraw:
		b.out[node] = true
	case protocol.Restore:
		delete(b.out, node)
	}
	if first {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	b.done = append(b.done, string(request.Action)+" "+node)
}

func (b *balancerServer) want(h *handMade, out bool, done ...string) {
	h.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if diff := cmp.Diff(done, b.done); diff != "" || b.out[h.n1] != out {
		h.Errorf("out %t, want %t; done (-want +got):\n%s", b.out[h.n1], out, diff)
	}
}

// configure writes the configuration: a server under a name of its own, and a rule that gives it the Service.
func (b *balancerServer) configure(h *handMade) string {
	h.Helper()
	ca := h.file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.Certificate().Raw})))
	token := h.file("token", "secret\n")
	return "--config=" + h.file("hooks.yaml", fmt.Sprintf(`apiVersion: safedrain.dev/v1alpha1
kind: HookConfig
hooks:
- name: edge
  type: http
  options: {url: "%s/lb", ca-file: %s, token-file: %s}
rules:
- namespaces: [%s]
  names: ["w*"]
  hook: edge
  settle: 2s
  timeout: 60s
`, b.URL, ca, token, h.Namespace))
}

// TestServerWithdraws: a rule of the configuration gives the Service to a server, which is asked with its token, is asked
// again when it is busy, and proves; the settle time is the rule's. A wrong configuration is a usage error.
func TestServerWithdraws(t *testing.T) {
	h := newHandMade(t, "")
	b := newBalancerServer(t)
	config := b.configure(h)
	n1 := h.n1
	h.run(n1, "--force", config, "--hook-option=edge.retry=3").want(h.scene, 2, `no option "retry"; known: ca-file`)
	h.run("hooks", h.Namespace+"/web", config).want(h.scene, 0)
	h.run(n1, "--force", config).want(h.scene, 0, "the others took over; settling 2s")
	h.gone(h.web)
	b.want(h, true, "withdraw "+n1)
	h.run("uncordon", n1).want(h.scene, 1, "nothing changed", `there is no hook "edge" here: give the --config`)
	h.pod("web", "web-3", n1)
	h.EndpointsReady("web", 2)
	h.run("uncordon", n1, config).want(h.scene, 0)
	b.want(h, false, "withdraw "+n1, "restore "+n1)
	h.standsAsBefore(n1)
}

// TestServerRefuses: credentials that are refused end the run at once; a server that is stuck, at its time.
func TestServerRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		token string
		says  string
	}{
		"no proof": {"secret", "is not proven out of edge"},
		"no token": {"wrong", "check the token"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandMade(t, "")
			b := newBalancerServer(t)
			b.stuck = true
			config := b.configure(h)
			h.file("token", test.token)
			h.run(h.n1, "--force", config, "--hook-timeout=3s").want(h.scene, 5, test.says)
			h.alive(h.web)
			h.journal.never("evicted web-1")
			h.file("token", "secret")
			h.run("uncordon", h.n1, config).want(h.scene, 0)
			b.mu.Lock()
			if b.out[h.n1] {
				t.Error("still out")
			}
			b.mu.Unlock()
			h.standsAsBefore(h.n1)
		})
	}
}
