package execcmd_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	execcmd "github.com/safedrain/safedrain/pkg/lbhooks/exec"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// script works a balancer that is a directory: the file state is what it shows, fault is how it fails.
const script = `#!/bin/sh
dir=$1
case $(cat "$dir/fault") in
flaky) echo "the balancer restarts" >&2; exit 1 ;;
forbidden) echo "the token has expired" >&2; exit 77 ;;
"not served") exit 127 ;;
slow) sleep 60 ;;
esac
echo "$SAFEDRAIN_ACTION $SAFEDRAIN_NODE $SAFEDRAIN_SERVICE" >>"$dir/calls"
[ "$SAFEDRAIN_ACTION" = prove ] || exit 0
case $(cat "$dir/state") in
out)
  echo '{"apiVersion": "safedrain.dev/v1alpha1", "kind": "HookAnswer", "out": true, "evidence": "n1 is in maintenance", "by": "n2"}' ;;
in) echo "n1 is up"; exit 75 ;;
moving) echo "n1 is draining: 3 sessions"; exit 75 ;;
lying) echo "n1 is in maintenance, and still answers"; exit 75 ;;
nobody) exit 75 ;;
esac
`

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func options(t *testing.T, values map[string]string) lbhooks.Options {
	t.Helper()
	o, err := lbhooks.NewOptions(execcmd.Options(), values)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func target() lbhooks.Target {
	class := "example.com/lb"
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: "u-n1", Annotations: map[string]string{"safedrain.dev/drain": `{"v":1,"run":"r1"}`}, Labels: map[string]string{"zone": "a"},
	}}
	n.Spec.ProviderID = "metal:///n1"
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "w", Name: "lb", UID: "u-lb", Annotations: map[string]string{"a": "b"}}}
	svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.LoadBalancerClass, svc.Spec.HealthCheckNodePort = &class, 32000
	svc.Spec.Ports = []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, NodePort: 30443}, {Protocol: corev1.ProtocolUDP, Port: 53}}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}, {Hostname: "lb.example.com"}}
	return lbhooks.Target{Service: svc, Node: n}
}

// balancer is a directory and the script that works it.
type balancer struct {
	t    *testing.T
	dir  string
	hook *execcmd.Hook
}

func newBalancer(t *testing.T) *balancer {
	b := &balancer{t: t, dir: t.TempDir()}
	path := write(t, filepath.Join(b.dir, "hook.sh"), script)
	b.hook = execcmd.New("exec", options(t, map[string]string{"command": `["` + path + `", "` + b.dir + `"]`}), false)
	b.Fail(hooktest.Healthy)
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *balancer) Hook() lbhooks.Hook     { return b.hook }
func (b *balancer) Target() lbhooks.Target { return target() }

func (b *balancer) Show(_ context.Context, s hooktest.State) error {
	return os.WriteFile(filepath.Join(b.dir, "state"), []byte(s), 0o600)
}

func (b *balancer) Fail(f hooktest.Fault) { write(b.t, filepath.Join(b.dir, "fault"), string(f)) }

func (b *balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, By: "n2", Slowness: 10,
		States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.NotServed, hooktest.Slow},
	}
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newBalancer(t) })
}
