package dataplane_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

const (
	// limit is when a connection counts as never answered.
	limit = 1500 * time.Millisecond
	// patience is how long what has to come may take on a busy machine.
	patience = 60 * time.Second
)

// place is what a test works with: a lab with a client beside the nodes.
type place struct {
	lab    *dataplane.Lab
	client *dataplane.Host
}

// up starts a lab that ends with the test, or skips the test where there can be none.
func up(t *testing.T, o dataplane.Options) *place {
	t.Helper()
	if err := dataplane.ForTests(); err != nil {
		t.Skip(err)
	}
	started := time.Now()
	lab, err := dataplane.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes up in %s", len(lab.Nodes), time.Since(started).Round(100*time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(lab.Logs())
		}
		if err := lab.Down(context.Background()); err != nil { // the test's own context has ended
			t.Error(err)
		}
	})
	client, err := lab.AddHost(t.Context(), "client")
	if err != nil {
		t.Fatal(err)
	}
	return &place{lab: lab, client: client}
}

// get asks once over a new connection from a host.
func get(ctx context.Context, from *dataplane.Host, to netip.AddrPort, query string) (*dataplane.Answer, error) {
	client := &http.Client{Timeout: limit + time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return from.DialContext(ctx, network, address)
		},
	}}
	return ask(ctx, client, to, query)
}

// ask asks once.
func ask(ctx context.Context, client *http.Client, to netip.AddrPort, query string) (*dataplane.Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+"/"+query, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	answer := &dataplane.Answer{}
	return answer, json.NewDecoder(resp.Body).Decode(answer)
}

// timedOut reports whether nobody answered a connection, which is how dropped packets look.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// served waits until connections to a node's port are answered.
func (p *place) served(t *testing.T, to netip.AddrPort) *dataplane.Answer {
	t.Helper()
	var answer *dataplane.Answer
	err := controlplane.Poll(t.Context(), patience, "an answer of "+to.String(), func(ctx context.Context) (done bool, state string, err error) {
		answer, err = get(ctx, p.client, to, "")
		return err == nil, "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// dropped waits until connections to a node's port are no longer answered.
func (p *place) dropped(t *testing.T, to netip.AddrPort) {
	t.Helper()
	err := controlplane.Poll(t.Context(), patience, to.String()+" drops", func(ctx context.Context) (bool, string, error) {
		_, err := get(ctx, p.client, to, "")
		return timedOut(err) && ctx.Err() == nil, fmt.Sprint(err), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// silent waits until nobody answers, in whatever way.
func (p *place) silent(t *testing.T, to netip.AddrPort) {
	t.Helper()
	err := controlplane.Poll(t.Context(), patience, to.String()+" is silent", func(ctx context.Context) (bool, string, error) {
		_, err := get(ctx, p.client, to, "")
		return err != nil && ctx.Err() == nil, "it answers", nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// health waits until a node's health check of a Service answers with a status.
func (p *place) health(t *testing.T, node *dataplane.Node, svc *corev1.Service, want string) {
	t.Helper()
	to := netip.AddrPortFrom(node.Addr, uint16(svc.Spec.HealthCheckNodePort))
	err := controlplane.Poll(t.Context(), patience, "health check "+to.String(), func(ctx context.Context) (bool, string, error) {
		_, err := get(ctx, p.client, to, "")
		got := "200"
		if err != nil {
			got = err.Error()
		}
		return got == want, got, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func nodePort(addr netip.Addr, svc *corev1.Service) netip.AddrPort {
	return netip.AddrPortFrom(addr, uint16(svc.Spec.Ports[0].NodePort))
}

// node returns the node that a pod runs on, and another one.
func (p *place) node(t *testing.T, name string) (with, without *dataplane.Node) {
	t.Helper()
	for _, n := range p.lab.Nodes {
		if n.Name == name {
			with = n
		} else {
			without = n
		}
	}
	if with == nil || without == nil {
		t.Fatalf("node %q and another one: not found", name)
	}
	return with, without
}

func TestMain(m *testing.M) {
	if name := os.Getenv(envOwner); name != "" {
		os.Exit(own(name))
	}
	os.Exit(m.Run())
}
