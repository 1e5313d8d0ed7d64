package hooks

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip/kubeviptest"
)

// kubeVIP is a kube-vip whose Leases, pods, endpoints and labels are real objects, and whose hook reads them as a user of
// its own.
type kubeVIP struct {
	*kubeviptest.Balancer

	reader *reader
	scene  *scene
	third  string
}

func newKubeVIP(t *testing.T, kind kubeviptest.Kind) *kubeVIP {
	t.Helper()
	s := newScene(t, func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	s.service.Annotations = map[string]string{}
	k := &kubeVIP{scene: s, third: s.Nodes(1)[0]}
	third, err := s.Client.CoreV1().Nodes().Get(t.Context(), k.third, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k.reader = newReader(t, s.Env, kubevip.New(nil, clock.RealClock{}).Describe().Needs)
	k.Balancer, err = kubeviptest.New(kubeviptest.Config{
		Kind: kind, Writer: s.Client, Reader: k.reader.kubernetes, Target: s.target(), Nodes: append(s.nodes, third),
		Namespace: s.Namespace, Fail: k.reader.Fail, Slowness: slowness,
	})
	k.reader.must(err)
	k.reader.must(k.Show(t.Context(), hooktest.In))
	return k
}

func TestKubeVIP(t *testing.T) {
	for _, kind := range []kubeviptest.Kind{kubeviptest.PerService, kubeviptest.Global, kubeviptest.BGP} {
		t.Run(string(kind), func(t *testing.T) {
			hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newKubeVIP(t, kind) })
		})
	}
}

// elector stands for election for one node as kube-vip does: client-go's elector on a LeaseLock whose identity is the
// node's name, with ReleaseOnCancel (kube-vip pkg/election/election.go). It looks more often than kube-vip's.
type elector struct {
	end  context.CancelFunc
	done sync.WaitGroup
}

func elect(t *testing.T, client kubernetes.Interface, namespace, name, node string) *elector {
	t.Helper()
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Client: client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: node},
	}
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 500 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &elector{}
	ctx, cancel := context.WithCancel(context.Background())
	e.end = cancel
	e.done.Go(func() { le.Run(ctx) })
	t.Cleanup(func() { cancel(); e.done.Wait() })
	return e
}

// TestKubeVIPElection: two real electors. The one on the drained node ends, as its pod does when the label takes
// kube-vip off the node; the hook proves once the other holds the Lease, and not while nobody renews it.
func TestKubeVIPElection(t *testing.T) {
	k := newKubeVIP(t, kubeviptest.PerService)
	ctx, namespace, name := t.Context(), k.scene.Namespace, "kubevip-gw"
	k.reader.must(k.scene.Client.CoordinationV1().Leases(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	holder := func(want string) func(context.Context) (bool, string, error) {
		return func(ctx context.Context) (bool, string, error) {
			l, err := k.scene.Client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil || l.Spec.HolderIdentity == nil {
				return false, "no holder", nil
			}
			return *l.Spec.HolderIdentity == want, "held by " + *l.Spec.HolderIdentity, nil
		}
	}
	n1, n2 := k.scene.nodes[0].Name, k.scene.nodes[1].Name
	first := elect(t, k.scene.Client, namespace, name, n1)
	k.scene.Wait("the first node holds the Lease", holder(n1))
	second := elect(t, k.scene.Client, namespace, name, n2)

	began := time.Now()
	p, err := lbhooks.Wait(ctx, clock.RealClock{}, k.Hook(), k.Target(), lbhooks.WaitOptions{
		Timeout: 3 * time.Minute, Poll: 50 * time.Millisecond, MaxPoll: 100 * time.Millisecond,
		Pending: func(p lbhooks.Pending) {
			if p.InARow == 0 && p.Proof.Evidence != "" && first.end != nil {
				// The pod ends: kube-vip stops its electors, takes its label off the node, and is gone.
				first.end()
				first.end = nil
				first.done.Wait()
				k.reader.must(k.hidden(ctx))
			}
		},
	})
	wantEvidence(t, p, err, true, "is held by "+n2)
	if p.By != n2 {
		t.Errorf("by %q, want %q", p.By, n2)
	}
	t.Logf("proven %s after the wait began", time.Since(began).Round(time.Millisecond))

	// The new holder dies without a word: its Lease is no proof once it is not renewed.
	second.end()
	second.done.Wait()
	k.reader.must(k.Hold(ctx, n2, time.Now().Add(-time.Minute)))
	p, err = k.Hook().Prove(ctx, k.Target())
	wantEvidence(t, p, err, false, "its holder may be dead")
}

// hidden takes kube-vip and its label off the node, and leaves the Lease to the electors.
func (k *kubeVIP) hidden(ctx context.Context) error {
	zero := int64(0)
	err := k.scene.Client.CoreV1().Pods(k.scene.Namespace).Delete(ctx, "kube-vip-ds-"+k.scene.nodes[0].Name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	node, getErr := k.scene.Client.CoreV1().Nodes().Get(ctx, k.scene.nodes[0].Name, metav1.GetOptions{})
	if getErr != nil {
		return errors.Join(err, getErr)
	}
	delete(node.Labels, "service-provided.kube-vip.io/gw."+k.scene.Namespace)
	_, updateErr := k.scene.Client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
	return errors.Join(err, updateErr)
}
