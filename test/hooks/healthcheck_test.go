package hooks

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	proxyhealth "k8s.io/kubernetes/pkg/proxy/healthcheck"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/healthcheck"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/test/controlplane"
)

// port is the healthCheckNodePort of a Service on one node, served by kube-proxy's own code.
type port struct {
	scene  *scene
	server proxyhealth.ServiceHealthServer
	sick   *sickness
	hook   *healthcheck.Hook
	own    types.NamespacedName
	owner  types.NamespacedName // of the port as it is served now
}

// sickness is the health of the kube-proxy itself.
type sickness struct{ atomic.Bool }

func (s *sickness) Health() proxyhealth.ProxyHealth {
	return proxyhealth.ProxyHealth{Healthy: !s.Load()}
}

func newPort(t *testing.T) *port {
	t.Helper()
	free := freePort(t)
	s := newScene(t, func(svc *corev1.Service) {
		svc.Spec.HealthCheckNodePort = free
		svc.Annotations = map[string]string{lbhooks.AnnotationHealthCheck: "interval=1s,unhealthy=3,timeout=1s"}
	})
	p := &port{scene: s, sick: &sickness{}, own: types.NamespacedName{Namespace: s.Namespace, Name: s.service.Name}}
	loopback := proxyutil.NewNodePortAddresses(corev1.IPv4Protocol, []string{"127.0.0.0/8"})
	p.server = proxyhealth.NewServiceHealthServer(s.nodes[0].Name, nil, loopback, p.sick, corev1.IPv4Protocol)
	t.Cleanup(func() { _ = p.server.SyncServices(nil) })
	p.hook = healthcheck.New(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}})
	if err := p.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return p
}

// Node ports that the API server hands out last, so that one may ask for them; each is used once.
const lastStaticPort = 30085

var nextStaticPort int32 = 30000

// freePort finds a node port that nobody on this machine listens on.
func freePort(t *testing.T) int32 {
	t.Helper()
	for nextStaticPort <= lastStaticPort {
		n := nextStaticPort
		nextStaticPort++
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", n))
		if err == nil {
			_ = l.Close()
			return n
		}
	}
	t.Fatal("no node port is free on this machine")
	return 0
}

func (p *port) Hook() lbhooks.Hook     { return p.hook }
func (p *port) Target() lbhooks.Target { return p.scene.target() }

// Fail: the hook does not ask the API.
func (p *port) Fail(hooktest.Fault) {}

// Traits: a port that is closed after it passed is out, and so is one whose kube-proxy is sick: both fail the check.
func (p *port) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: slowness,
		States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Out:    []hooktest.State{hooktest.Moving, hooktest.Nobody},
	}
}

// Show makes kube-proxy see endpoints. In: one. Out: none. Moving: one, but kube-proxy itself is sick. Lying: the port is
// another Service's. Nobody: the Service is gone.
func (p *port) Show(ctx context.Context, s hooktest.State) error {
	number := uint16(p.scene.service.Spec.HealthCheckNodePort)
	owner, local := p.own, 1
	switch s {
	case hooktest.Out:
		local = 0
	case hooktest.Lying:
		owner = types.NamespacedName{Namespace: p.own.Namespace, Name: "another"}
	case hooktest.In, hooktest.Moving, hooktest.Nobody:
	}
	p.sick.Store(s == hooktest.Moving)
	services := map[types.NamespacedName]uint16{owner: number}
	if s == hooktest.Nobody {
		services = nil
	}
	if owner != p.owner {
		// kube-proxy gives up on a port that is not free yet, and frees one in its own time.
		if err := p.serve(ctx, nil); err != nil {
			return err
		}
	}
	p.owner = owner
	if err := p.serve(ctx, services); err != nil {
		return err
	}
	return p.server.SyncEndpoints(map[types.NamespacedName]int{owner: local})
}

// serve has kube-proxy serve the port, or with no Service close it, and waits until it does.
func (p *port) serve(ctx context.Context, services map[types.NamespacedName]uint16) error {
	if err := p.server.SyncServices(services); err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.scene.service.Spec.HealthCheckNodePort)))
	return controlplane.Poll(ctx, 2*time.Minute, "kube-proxy on "+address, func(ctx context.Context) (bool, string, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return (err == nil) == (len(services) > 0), fmt.Sprint(err), nil
	})
}

func TestHealthCheck(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer {
		p := newPort(t)
		if o, err := p.hook.Baseline(t.Context(), p.Target()); err != nil || o.Answer != healthcheck.Passing {
			t.Fatalf("before anything: %+v, %v", o, err)
		}
		return p
	})
}

// The answers of kube-proxy's own code, read by the hook.
func TestHealthCheckAnswers(t *testing.T) {
	p := newPort(t)
	for state, want := range map[hooktest.State]healthcheck.Answer{
		hooktest.In: healthcheck.Passing, hooktest.Out: healthcheck.Failing, hooktest.Moving: healthcheck.Failing,
		hooktest.Lying: healthcheck.Strange, hooktest.Nobody: healthcheck.Refused,
	} {
		if err := p.Show(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		// kube-proxy closes a port in its own time: until then a connection may be accepted that nobody answers.
		var seen healthcheck.Observation
		err := controlplane.Poll(t.Context(), 2*time.Minute, string(state), func(ctx context.Context) (bool, string, error) {
			var err error
			seen, err = p.hook.Baseline(ctx, p.Target())
			return err == nil && seen.Answer == want, fmt.Sprintf("%+v, want %s", seen, want), err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
