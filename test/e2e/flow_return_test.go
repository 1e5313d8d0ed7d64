package e2e

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/controlplane"
)

// returning is a drained node n1 behind MetalLB.
type returning struct {
	*scene
	n1    string
	knows atomic.Bool // whether kube-proxy on n1 knows the pod, once it is an endpoint
}

func newReturning(t *testing.T) *returning {
	t.Helper()
	r := &returning{scene: newScene(t, 3, onLoopback)}
	r.n1 = r.nodes[0]
	r.metalLB(r.nodes...)
	r.pod("gw", "gw-1", r.n1)
	r.pod("gw", "gw-2", r.nodes[1])
	svc := r.loadBalancer(metallbtest.L2, "gw", localPolicy)
	r.EndpointsReady("gw", 2)
	r.checkPort(svc, r.n1, func(code int) int {
		if !r.knows.Load() {
			return http.StatusServiceUnavailable
		}
		return code
	})
	r.kubeProxy(svc, r.nodes[1], 0)
	r.speakers(metallbtest.L2, svc, r.n1, r.nodes[1], lbStep{100 * time.Millisecond, hooktest.Out})
	r.remember()
	r.run(r.n1, "--ignore-daemonsets", "--force").want(r.scene, 0)
	return r
}

// TestReturnWaitsForKubeProxy: uncordon lets a pod come, and keeps the node out of its balancer until that is an endpoint
// and the node's kube-proxy knows it.
func TestReturnWaitsForKubeProxy(t *testing.T) {
	r := newReturning(t)
	// It fits nowhere else, and has no node while n1 takes none.
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "gw-3", Labels: map[string]string{controlplane.AppLabel: "gw"}, Annotations: map[string]string{controlplane.Ready: "false"},
		},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: r.n1},
			Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
		},
	}
	if _, err := r.Client.CoreV1().Pods(r.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	back := begin(r, "uncordon", r.n1, "--wait-timeout=100s")
	back.says(r.Env, "pod gw-3 is not Ready")
	annotate(r.Env, "gw-3", controlplane.Ready, "true")
	r.EndpointsReady("gw", 2)
	back.says(r.Env, "does not know its pod")
	time.Sleep(3 * time.Second) // longer than where only time tells
	r.holds(r.n1, false, true, true)
	r.knows.Store(true)
	said, code := back.end()
	if code != 0 {
		t.Errorf("exit code %d, want 0\n%s", code, said)
	}
	wantSaid(t, said, "kube-proxy knows its pod")
	r.standsAsBefore(r.n1)
}

// TestReturnWithoutKubeProxy: a node whose kube-proxy does not know its pod stays out, which is said, and comes back by the
// same command when it does.
func TestReturnWithoutKubeProxy(t *testing.T) {
	r := newReturning(t)
	r.pod("gw", "gw-3", r.n1)
	r.EndpointsReady("gw", 2)
	e := r.run("uncordon", r.n1, "--wait-timeout=5s")
	e.want(r.scene, 4, "stays out", "kube-proxy on "+r.n1+" does not know its pod", "continue")
	r.holds(r.n1, false, true, true)
	r.knows.Store(true)
	r.back(r.n1)
}
