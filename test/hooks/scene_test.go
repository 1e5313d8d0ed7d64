package hooks

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// hooktestCall bounds one answer of the API server, before slowness.
const hooktestCall = 2 * time.Second

// scene is two nodes and a Service of type LoadBalancer with an address.
type scene struct {
	*controlplane.Env

	service *corev1.Service
	nodes   []*corev1.Node
}

func newScene(t *testing.T, mutate ...func(*corev1.Service)) *scene {
	t.Helper()
	s := &scene{Env: cluster.Env(t)}
	for _, name := range s.Nodes(2, func(n *corev1.Node) { setInternalIP(n, "127.0.0.1") }) {
		n, err := s.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.nodes = append(s.nodes, n)
	}
	mutate = append([]func(*corev1.Service){func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer }}, mutate...)
	s.ServiceStatus(s.Service("gw", mutate...), "192.0.2.10")
	s.read()
	return s
}

// setInternalIP gives the first node a loopback address of its own, and leaves the others theirs.
func setInternalIP(n *corev1.Node, address string) {
	for i := range n.Status.Addresses {
		if a := &n.Status.Addresses[i]; a.Type == corev1.NodeInternalIP && a.Address == "127.1.0.2" {
			a.Address = address
		}
	}
}

// read reads the Service anew.
func (s *scene) read() {
	s.Helper()
	svc, err := s.Client.CoreV1().Services(s.Namespace).Get(s.Context(), "gw", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.service = svc
}

func (s *scene) target() lbhooks.Target { return lbhooks.Target{Service: s.service, Node: s.nodes[0]} }
