package balancers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

// How HAProxy checks its servers, in all three ways.
const (
	CheckInterval = 2 * time.Second
	CheckFall     = 3
	CheckRise     = 2
)

// ClassHAProxy is the loadBalancerClass of Services that HAProxy carries, so that no other balancer takes them.
const ClassHAProxy = "test.safedrain.dev/haproxy"

// HAProxy is a balancer with its backends written by hand, on a host of its own. It forwards connections, so that pods see
// its address and not the client's. Open connections outlive the removal of a node.
type HAProxy struct {
	name    string
	lab     *dataplane.Lab
	host    *dataplane.Host
	client  *dataplane.Host
	dir     string
	example string // the worked example of a hook
	spawner *spawn.Spawner
	process *daemon
	relay   *Relay
	hook    *hookServer
}

var (
	_ Balancer = (*HAProxy)(nil)
	_ Faulty   = (*HAProxy)(nil)
)

// NewHAProxy makes a host with a HAProxy of that kind: [HAProxyHealthCheck], [HAProxyTCP] or [NodePort]. It runs from the
// first Carry on.
func NewHAProxy(ctx context.Context, lab *dataplane.Lab, client *dataplane.Host, name string) (*HAProxy, error) {
	h := &HAProxy{name: name, lab: lab, client: client, dir: filepath.Join(lab.Dir, name)}
	repository, err := controlplane.OtherModule(ctx, "..")
	if err != nil {
		return nil, err
	}
	h.example = filepath.Join(repository, "docs", "examples", "haproxy-hook")
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return nil, err
	}
	if h.host, err = lab.AddHost(ctx, name); err != nil {
		return nil, err
	}
	if h.relay, err = newRelay(ctx, h.file("admin.sock"), h.file("real.sock")); err != nil {
		return nil, err
	}
	if h.hook, err = newHookServer(ctx, h.Socket()); err != nil {
		return nil, errors.Join(err, h.relay.Close())
	}
	h.spawner = spawn.New(false)
	return h, nil
}

func (h *HAProxy) file(name string) string { return filepath.Join(h.dir, name) }

// Socket is the path of the runtime socket, behind which the faults are.
func (h *HAProxy) Socket() string { return h.file("admin.sock") }

// Traits tells what it is. The hook exec is the worked example docs/examples/haproxy-hook, as it is.
func (h *HAProxy) Traits() Traits {
	t := Traits{Name: h.name, Service: forHAProxy, Drains: true}
	t.Ways = append(t.Ways, h.hookWay())
	if h.hook != nil {
		t.Ways = append(t.Ways, h.hook.way())
	}
	if h.name == HAProxyHealthCheck {
		check := fmt.Sprintf("interval=%s,unhealthy=%d,timeout=%s", CheckInterval, CheckFall, CheckInterval)
		t.Ways = append(t.Ways, Way{Name: "health-check", Annotations: map[string]string{
			"safedrain.dev/hook": "health-check", "safedrain.dev/health-check": check,
		}})
	}
	return t
}

// forHAProxy makes a Service of type LoadBalancer, for the sake of its healthCheckNodePort, of HAProxy's class.
func forHAProxy(svc *corev1.Service) {
	class := ClassHAProxy
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.LoadBalancerClass = &class
}

func (h *HAProxy) hookWay() Way { return hookWay(h.example, h.Socket()) }

// hookWay lets the worked example work these sockets.
func hookWay(example string, sockets ...string) Way {
	command, err := json.Marshal([]string{"/usr/bin/env", "HAPROXY_SOCKETS=" + strings.Join(sockets, " "), example})
	if err != nil {
		command = nil // strings are always written
	}
	return Way{
		Name: "hook", Annotations: map[string]string{"safedrain.dev/hook": "exec"},
		Flags: []string{"--hook-option=exec.command=" + string(command)},
	}
}

// Carry writes the configuration and starts HAProxy, or starts it again: open connections end then.
func (h *HAProxy) Carry(ctx context.Context, services ...*corev1.Service) error {
	config, err := h.config(services)
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.file("haproxy.cfg"), []byte(config), 0o600); err != nil {
		return err
	}
	if err := h.process.stop(ctx); err != nil {
		return err
	}
	if h.process, err = start(h.spawner, h.host, h.dir, program("haproxy"), "-db", "-f", h.file("haproxy.cfg")); err != nil {
		return err
	}
	running, cancel := h.process.while(ctx)
	defer cancel()
	for _, svc := range services {
		err := h.waitUp(running, svc)
		if err == nil {
			err = answering(running, h, svc, h.client)
		}
		if err != nil {
			return errors.Join(err, context.Cause(running))
		}
	}
	return nil
}

// waitUp waits until the nodes with a Ready endpoint are in rotation and, with a check, no others.
func (h *HAProxy) waitUp(ctx context.Context, svc *corev1.Service) error {
	what := fmt.Sprintf("%s carries %s/%s", h.name, svc.Namespace, svc.Name)
	return controlplane.Poll(ctx, startTimeout, what, func(ctx context.Context) (bool, string, error) {
		want, err := readyNodes(ctx, h.lab, svc)
		if err != nil {
			return false, "", err
		}
		shown, err := h.Shown(ctx, svc)
		if err != nil {
			return false, "", err
		}
		done := len(want) > 0 && slices.Equal(want, shown)
		if h.name == NodePort {
			done = len(shown) == len(h.lab.Nodes)
		}
		return done, fmt.Sprintf("in rotation: %v, with a Ready endpoint: %v", shown, want), nil
	})
}

// readyNodes are the nodes with a Ready endpoint of a Service, sorted.
func readyNodes(ctx context.Context, lab *dataplane.Lab, svc *corev1.Service) ([]string, error) {
	endpoints, err := lab.Endpoints(ctx, svc.Namespace, svc.Name)
	if err != nil {
		return nil, err
	}
	var nodes []string
	for i := range endpoints {
		e := &endpoints[i]
		if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
			nodes = append(nodes, *e.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// Target is HAProxy's address with the Service's nodePort as its own port.
func (h *HAProxy) Target(svc *corev1.Service) netip.AddrPort {
	return netip.AddrPortFrom(h.host.Addr, uint16(svc.Spec.Ports[0].NodePort))
}

// Shown reads HAProxy's statistics.
func (h *HAProxy) Shown(ctx context.Context, svc *corev1.Service) ([]string, error) {
	servers, err := h.servers(ctx)
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, s := range servers {
		if s.proxy == proxyName(svc, &svc.Spec.Ports[0]) && s.in() {
			nodes = append(nodes, s.name)
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}

// Remove drains the node in every backend.
func (h *HAProxy) Remove(ctx context.Context, node string) error { return h.set(ctx, node, "drain") }

// Return makes the node ready in every backend.
func (h *HAProxy) Return(ctx context.Context, node string) error { return h.set(ctx, node, "ready") }

func (h *HAProxy) set(ctx context.Context, node, state string) error {
	servers, err := h.servers(ctx)
	if err != nil {
		return err
	}
	found := false
	for _, s := range servers {
		if s.name != node {
			continue
		}
		found = true
		answer, err := ask(ctx, h.file("real.sock"), fmt.Sprintf("set server %s/%s state %s", s.proxy, s.name, state))
		if err == nil && strings.TrimSpace(answer) != "" {
			err = errors.New(strings.TrimSpace(answer))
		}
		if err != nil {
			return fmt.Errorf("%s: set %s/%s to %s: %w", h.name, s.proxy, s.name, state, err)
		}
	}
	if !found {
		return fmt.Errorf("%s has no server %q", h.name, node)
	}
	return nil
}

// Stop ends HAProxy.
func (h *HAProxy) Stop(ctx context.Context) error {
	err := errors.Join(h.process.stop(ctx), h.hook.close(), h.relay.Close())
	h.spawner.Close()
	return err
}
