package balancers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// hookServer works one HAProxy for the hook http of safedrain, as docs/hooks/protocol.md has it: the controller of a
// balancer that somebody made by hand. It listens on this machine, outside the namespaces of the lab.
type hookServer struct {
	socket string // HAProxy's, behind which the faults are
	server *http.Server
	url    string
}

// newHookServer serves until it is closed.
func newHookServer(ctx context.Context, socket string) (*hookServer, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the hook http: %w", err)
	}
	s := &hookServer{socket: socket, url: "http://" + l.Addr().String() + "/hook"}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.server.Serve(l) }() // it ends when it is closed
	return s, nil
}

func (s *hookServer) close() error {
	if s == nil {
		return nil
	}
	return s.server.Close()
}

// way lets safedrain work HAProxy by this server. A run has one hook http, so only one balancer of a round may use it.
func (s *hookServer) way() Way {
	return Way{
		Name: "http", Annotations: map[string]string{"safedrain.dev/hook": "http"},
		Flags: []string{"--hook-option=http.url=" + s.url},
	}
}

// call is what is read of a HookRequest.
type call struct {
	Action string `json:"action"`
	Node   struct {
		Name string `json:"name"`
	} `json:"node"`
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
}

// ServeHTTP answers one call.
func (s *hookServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var c call
	if err := json.NewDecoder(req.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, idle, evidence, err := s.act(req.Context(), &c)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // an error is the caller's, who has gone
		"apiVersion": "safedrain.dev/v1alpha1", "kind": "HookAnswer", "out": out, "idle": idle && !out, "evidence": evidence,
	})
}

var errNoServer = errors.New("no backend of the Service has the node as a server")

// act does what is asked for in every backend of the Service, and says whether the node is out of all of them, or gets
// nothing from one since its check fails.
func (s *hookServer) act(ctx context.Context, c *call) (out, idle bool, evidence string, err error) {
	stat, err := ask(ctx, s.socket, "show stat -1 4 -1")
	if err != nil {
		return false, false, "", err
	}
	servers, err := parseStat(stat)
	if err != nil {
		return false, false, "", err
	}
	out = true
	var seen []string
	for _, server := range servers {
		if server.name != c.Node.Name || !strings.HasPrefix(server.proxy, c.Service.Namespace+"_"+c.Service.Name+"_") {
			continue
		}
		seen = append(seen, fmt.Sprintf("%s/%s is %s", server.proxy, server.name, server.status))
		out = out && (strings.HasPrefix(server.status, "DRAIN") || strings.HasPrefix(server.status, "MAINT"))
		idle = idle || strings.HasPrefix(server.status, "DOWN")
		state, change := map[string]string{"withdraw": "drain", "restore": "ready"}[c.Action]
		if !change {
			continue
		}
		answer, err := ask(ctx, s.socket, fmt.Sprintf("set server %s/%s state %s", server.proxy, server.name, state))
		if err == nil && strings.TrimSpace(answer) != "" {
			err = errors.New(strings.TrimSpace(answer))
		}
		if err != nil {
			return false, false, "", err
		}
	}
	if len(seen) == 0 {
		return false, false, "", errNoServer
	}
	return out, idle, strings.Join(seen, "; "), nil
}
