package gate

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// settleTime is how long the balancer of these tests needs; nothing confirms that it did.
const settleTime = 4 * time.Second

var lastAddress atomic.Int32

// drained is the place of one client that empties a node through a whole gate.
type drained struct {
	*controlplane.Env
	node string
	pod  *corev1.Pod
}

// newDrained gives a client a node with one of two pods of a Service behind a cloud's balancer.
func newDrained(t *testing.T) *drained {
	t.Helper()
	t.Parallel()
	g := oneGate(t, "gate-clamp", 1, "--mode=enforce", "--scale=clamp")
	d := &drained{Env: own.get(t).Env(t)}
	nodes := d.Nodes(2)
	d.node = nodes[0]
	for i, node := range nodes {
		p := d.Pod(fmt.Sprintf("web-%d", i), node, func(p *corev1.Pod) { p.Labels[controlplane.AppLabel] = "web" })
		if i == 0 {
			d.pod = p
		}
	}
	svc := d.Service("web", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Annotations = map[string]string{lbhooks.AnnotationSettle: settleTime.String()}
	})
	d.ServiceStatus(svc, fmt.Sprintf("203.0.113.%d", lastAddress.Add(1))) // Services that share an address share their fate
	d.EndpointsReady("web", 2)
	g.judges(d.Env)
	t.Cleanup(func() {
		if t.Failed() {
			for _, r := range g.all() {
				t.Log(r.log.String())
			}
		}
	})
	return d
}

// wantWaited fails unless the pod was let go only after the node had been out for its time.
func (d *drained) wantWaited(goneAt time.Time) {
	d.Helper()
	n, err := d.Client.CoreV1().Nodes().Get(d.Context(), d.node, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	c, err := claim.Of(n)
	if err != nil || c == nil {
		d.Fatalf("claim %v, %v", c, err)
	}
	s := c.Services[d.Namespace+"/web"]
	if !s.Released || s.Since == nil || goneAt.Before(s.Since.Add(settleTime)) {
		d.Errorf("the pod went at %s: %+v", goneAt, s)
	}
	if n.Labels[lbhooks.ExcludeLabel] != "true" {
		d.Errorf("labels %v", n.Labels)
	}
}

// gone returns when the pod was seen to have gone.
func (d *drained) gone() time.Time {
	d.Helper()
	d.Gone(d.pod.Name, d.pod.UID)
	return time.Now()
}

func (d *drained) patch(patch string) {
	d.Helper()
	if _, err := d.Client.CoreV1().Nodes().Patch(d.Context(), d.node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		d.Fatal(err)
	}
}

// kubectl drain, as it is: it waits and completes.
func TestWithdrawForKubectlDrain(t *testing.T) {
	d := newDrained(t)
	kubectl := program(own.get(t), t)
	_, stderr, code := kubectl("drain", d.node, "--force", "--timeout=150s")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	d.wantWaited(time.Now())
}

// A client that behaves as cluster-autoscaler: a taint, then policy/v1beta1 evictions that are tried again whatever the error.
func TestWithdrawForAClientLikeClusterAutoscaler(t *testing.T) {
	d := newDrained(t)
	d.patch(autoscalersTaint)
	began := time.Now()
	d.Wait("evicted", func(ctx context.Context) (bool, string, error) {
		err := d.Client.PolicyV1beta1().Evictions(d.Namespace).Evict(ctx, &policyv1beta1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.pod.Name},
		})
		return err == nil || apierrors.IsNotFound(err), fmt.Sprint(err), nil
	})
	d.wantWaited(d.gone())
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("it took %s, longer than cluster-autoscaler tries", took)
	}
}

// A client that behaves as Karpenter: its taint and its label, evictions with the pod's UID, 404 and 409 taken for done.
func TestWithdrawForAClientLikeKarpenter(t *testing.T) {
	d := newDrained(t)
	d.patch(fmt.Sprintf(`{"metadata":{"labels":{%q:"karpenter"}},"spec":{"taints":[{"key":"karpenter.sh/disrupted","effect":"NoSchedule"}]}}`, lbhooks.ExcludeLabel))
	d.Wait("evicted", func(ctx context.Context) (bool, string, error) {
		err := d.Client.PolicyV1().Evictions(d.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: d.Namespace, Name: d.pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &d.pod.UID}},
		})
		if apierrors.IsConflict(err) {
			return false, "", fmt.Errorf("Karpenter would take it for evicted: %w", err)
		}
		return err == nil || apierrors.IsNotFound(err), fmt.Sprint(err), nil
	})
	d.wantWaited(d.gone())
}
