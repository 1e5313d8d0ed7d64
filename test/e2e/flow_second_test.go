package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// TestC05ASecondPod: the only pod of a Service is not evicted. A second one that is Ready elsewhere makes that safe, but only
// once its node passes the balancer's check too: each run judges anew, and nothing is taken for granted.
func TestC05ASecondPod(t *testing.T) {
	s := newScene(t, 3, onLoopback)
	n1, n2 := s.nodes[0], s.nodes[1]
	outlives := func(p *corev1.Pod) {
		graceOf(10, "6")(p)
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 7}}}
	}
	only := s.pod("ctl", "ctl-1", n1, outlives)
	svc := s.Service("ctl", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Annotations = map[string]string{
			lbhooks.AnnotationHook: "health-check", lbhooks.AnnotationHealthCheck: "interval=1s,unhealthy=2,timeout=1s",
		}
	})
	s.ServiceStatus(svc, newAddress())
	s.EndpointsReady("ctl", 1)
	s.kubeProxy(svc, n1, 0)
	s.remember()

	alone := s.run(n1, "--force", "-o", "json")
	alone.want(s, 3)
	if f, ok := findingCodes(alone.report(s))[guard.LastEndpoint]; !ok || f.Severity != guard.Block {
		t.Errorf("no LastEndpoint in %s", alone.stdout)
	}
	s.standsAsBefore(n1)

	s.pod("ctl", "ctl-2", n2, outlives, controlplane.With(map[string]string{controlplane.ReadyAfter: "1"}))
	s.EndpointsReady("ctl", 2)
	early := s.run(n1, "--force", "--rollback")
	early.want(s, 5, "no other node passes the check")
	s.alive(only)
	s.journal.never("evicted ctl-1")
	s.standsAsBefore(n1)

	s.kubeProxy(svc, n2, 0)
	e := s.run(n1, "--force", "-o", "json")
	e.want(s, 0)
	if r := e.report(s); r.Verdict != guard.Withdraw {
		t.Errorf("verdict %s, want Withdraw", r.Verdict)
	}
	s.gone(only)
	s.back(n1)
}
