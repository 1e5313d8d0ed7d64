package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

var lastLoopback atomic.Int32

// onLoopback gives a node an address of its own that can be listened on here.
func onLoopback(n *corev1.Node) {
	for i := range n.Status.Addresses {
		if a := &n.Status.Addresses[i]; a.Type == corev1.NodeInternalIP {
			a.Address = fmt.Sprintf("127.18.0.%d", lastLoopback.Add(1))
		}
	}
}

// kubeProxy answers on the health check port of a node as kube-proxy does, from the EndpointSlices: 200 where an endpoint
// of the Service is ready on the node, else 503. An override other than 0 is answered whatever the slices say.
func (s *scene) kubeProxy(svc *corev1.Service, node string, override int) {
	s.Helper()
	s.checkPort(svc, node, func(code int) int {
		if override != 0 {
			return override
		}
		return code
	})
}

// checkPort answers on the health check port of a node what say makes of the code that the slices come to.
func (s *scene) checkPort(svc *corev1.Service, node string, say func(code int) int) {
	s.Helper()
	address := ""
	for _, a := range s.node(node).Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = fmt.Sprintf("%s:%d", a.Address, svc.Spec.HealthCheckNodePort)
		}
	}
	listener, err := new(net.ListenConfig).Listen(s.Context(), "tcp", address)
	if err != nil {
		s.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		local, err := s.readyOn(req.Context(), svc.Name, node)
		code := http.StatusOK
		if err != nil || local == 0 {
			code = http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(say(code))
		_ = json.NewEncoder(w).Encode(map[string]any{
			"service": map[string]any{"namespace": svc.Namespace, "name": svc.Name}, "localEndpoints": local, "serviceProxyHealthy": true,
		})
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	s.Cleanup(func() { _ = server.Close(); <-done })
}

// readyOn counts the ready endpoints of a Service on a node.
func (s *scene) readyOn(ctx context.Context, service, node string) (count int, err error) {
	slices, err := s.Slices(ctx, service)
	for i := range slices {
		for _, e := range slices[i].Endpoints {
			if e.NodeName != nil && *e.NodeName == node && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				count++
			}
		}
	}
	return count, err
}

// checked is how the pods behind a health check end.
type checked struct {
	grace, sleep int64  // the grace period and the preStop sleep, in seconds
	serves       string // how many seconds they really serve on
	override     int    // what the port of n1 says in any case
}

// behindHealthCheck is a Service web of a balancer that knows the health check port only and takes a node out 5 s after
// the eviction of its pods, by its annotation.
func behindHealthCheck(t *testing.T, c checked) (s *scene, web *corev1.Pod) {
	t.Helper()
	s = newScene(t, 2, onLoopback)
	pod := func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = &c.grace
		if c.serves != "" {
			p.Annotations[controlplane.TerminatesAfter] = c.serves
		}
		if c.sleep > 0 {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: c.sleep}}}
		}
	}
	web = s.pod("web", "web-1", s.nodes[0], pod)
	s.pod("web", "web-2", s.nodes[1], pod)
	svc := s.Service("web", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Annotations = map[string]string{
			"safedrain.dev/hook": "health-check", "safedrain.dev/health-check": "interval=1s,unhealthy=2,timeout=1s",
		}
	})
	s.ServiceStatus(svc, newAddress())
	s.EndpointsReady("web", 2)
	s.kubeProxy(svc, s.nodes[0], c.override)
	s.kubeProxy(svc, s.nodes[1], 0)
	s.remember()
	return s, web
}

// TestC02HealthCheckPortOnly: pods that outlive the balancer's health check are evicted and serve until they end.
func TestC02HealthCheckPortOnly(t *testing.T) {
	s, web := behindHealthCheck(t, checked{grace: 10, sleep: 7, serves: "6"})
	n1 := s.nodes[0]
	b := s.start(n1, "--force", "-o", "json")
	s.journal.get("evicted web-1")
	s.Wait("the port fails", func(ctx context.Context) (bool, string, error) {
		n, err := s.readyOn(ctx, "web", n1)
		return err == nil && n == 0, fmt.Sprint(n), err
	})
	if s.journal.has("gone web-1") {
		t.Error("the pod was gone before its port failed: nothing served meanwhile")
	}
	e := b.end(s)
	e.want(s, 0)
	r := e.report(s)
	if r.Verdict != guard.Withdraw || len(r.Services) != 1 || r.Services[0].Balancer.Removal != guard.RemovalHealthCheck {
		t.Errorf("verdict %s, services %+v: want Withdraw by HealthCheck", r.Verdict, r.Services)
	}
	s.gone(web)
	if served := s.journal.get("gone web-1").at.Sub(s.journal.get("evicted web-1").at); served < 4*time.Second || e.took < served {
		t.Errorf("the pod served %s, the run took %s: want to wait until the pod has ended", served, e.took)
	}
	s.back(n1)
}

// TestC02HealthCheckNeverPassed: a port that fails although an endpoint is ready proves nothing when it fails later.
func TestC02HealthCheckNeverPassed(t *testing.T) {
	s, web := behindHealthCheck(t, checked{grace: 10, sleep: 7, serves: "6", override: http.StatusServiceUnavailable})
	e := s.run(s.nodes[0], "--force")
	e.want(s, 5, s.Namespace+"/web is not proven out of health-check", "503")
	s.alive(web)
	s.journal.never("evicted web-1")
	s.back(s.nodes[0])
}

// TestC02GraceTooShort: pods that end before the health check takes the node out are not evicted at all.
func TestC02GraceTooShort(t *testing.T) {
	s, web := behindHealthCheck(t, checked{grace: 3})
	e := s.run(s.nodes[0], "--force")
	e.want(s, 3, "refused, nothing changed", s.Namespace+"/web")
	s.alive(web)
	s.standsAsBefore(s.nodes[0])
}
