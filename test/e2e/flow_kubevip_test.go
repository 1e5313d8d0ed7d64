package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// kubeVIP installs a kube-vip for the Services of this scene: a DaemonSet that may keep off nodes with the exclude label,
// and for each of its pods that runs an elector as kube-vip has one for a Service, client-go's on a LeaseLock with
// ReleaseOnCancel. It ends when its pod does.
func (s *scene) kubeVIP(service string, obeys bool) {
	s.Helper()
	labels := map[string]string{controlplane.AppLabel: "kube-vip", "app.kubernetes.io/name": "kube-vip-ds"}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "kube-vip-ds"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				HostNetwork:  true,
				NodeSelector: map[string]string{controlplane.PoolLabel: s.Namespace},
				Containers: []corev1.Container{{Name: "kube-vip", Image: "example.invalid/kube-vip", Env: []corev1.EnvVar{
					{Name: "vip_arp", Value: "true"},
					{Name: "svc_enable", Value: "true"},
					{Name: "svc_election", Value: "true"},
					{Name: "svc_namespace", Value: s.Namespace},
				}}},
			},
		},
	}}
	if obeys {
		ds.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: lbhooks.ExcludeLabel, Operator: corev1.NodeSelectorOpDoesNotExist}},
			}}},
		}}
	}
	if _, err := s.Client.AppsV1().DaemonSets(s.Namespace).Create(s.Context(), ds, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.PodsReady("kube-vip", len(s.nodes))
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	s.Cleanup(func() { cancel(); all.Wait() })
	for _, node := range s.nodes[:2] { // those with an endpoint stand for election
		all.Go(func() { s.standFor(ctx, service, node) })
	}
}

// standFor runs an elector for a node while its kube-vip runs there. The first node gets a start.
func (s *scene) standFor(ctx context.Context, service, node string) {
	if node != s.nodes[0] {
		if err := controlplane.Poll(ctx, time.Minute, "a holder", func(ctx context.Context) (bool, string, error) {
			return s.holderOf(ctx, service) != "", "", nil
		}); err != nil {
			return
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "kubevip-" + service}, Client: s.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: node},
		},
		ReleaseOnCancel: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		s.Error(err)
		return
	}
	go func() {
		_ = controlplane.Poll(ctx, time.Hour, "the end of kube-vip on "+node, func(ctx context.Context) (bool, string, error) {
			pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kube-vip-ds"})
			if err != nil {
				return false, "", nil
			}
			for i := range pods.Items {
				if p := &pods.Items[i]; p.Spec.NodeName == node && p.DeletionTimestamp == nil {
					return false, "", nil
				}
			}
			return true, "", nil
		})
		cancel()
	}()
	elector.Run(ctx)
}

func (s *scene) holderOf(ctx context.Context, service string) string {
	lease, err := s.Client.CoordinationV1().Leases(s.Namespace).Get(ctx, "kubevip-"+service, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// behindKubeVIP is a Service gw that n1 announces, with a pod on n1 and one on n2.
func behindKubeVIP(t *testing.T, obeys bool) (s *scene, gw *corev1.Pod) {
	t.Helper()
	s = newScene(t, 3)
	gw = s.pod("gw", "gw-1", s.nodes[0])
	s.pod("gw", "gw-2", s.nodes[1])
	svc := s.Service("gw", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, localPolicy
	})
	s.ServiceStatus(svc, newAddress())
	s.EndpointsReady("gw", 2)
	s.kubeVIP("gw", obeys)
	s.Wait("n1 holds the Lease", func(ctx context.Context) (bool, string, error) {
		holder := s.holderOf(ctx, "gw")
		return holder == s.nodes[0], "held by " + holder, nil
	})
	s.remember()
	return s, gw
}

// TestC15KubeVIP: the label ends kube-vip on the node, by the real DaemonSet controller; another node wins the election;
// only then the pod is evicted. The label's removal brings kube-vip back.
func TestC15KubeVIP(t *testing.T) {
	s, gw := behindKubeVIP(t, true)
	n1, n2 := s.nodes[0], s.nodes[1]
	e := s.run(n1, "--ignore-daemonsets", "--force", "-o", "json")
	e.want(s, 0)
	s.journal.inOrder("cordoned "+n1, "labelled "+n1, "evicted gw-1")
	if holder := s.holderOf(t.Context(), "gw"); holder != n2 {
		t.Errorf("the Lease is held by %q, want %q", holder, n2)
	}
	s.gone(gw)
	r := e.report(s)
	if r.Verdict != guard.Withdraw || len(r.Services) != 1 || r.Services[0].Balancer.Hook != "kube-vip" {
		t.Errorf("verdict %s, services %+v", r.Verdict, r.Services)
	}
	for _, step := range r.Steps {
		if step.Name == "prove" {
			t.Logf("proven: %s", step.Evidence)
		}
	}
	s.back(n1)
	s.PodsReady("kube-vip", 3)
}

// TestC15KubeVIPWithoutALever: a DaemonSet that ignores the label leaves nothing to withdraw by: refused, nothing changed.
func TestC15KubeVIPWithoutALever(t *testing.T) {
	s, gw := behindKubeVIP(t, false)
	e := s.run(s.nodes[0], "--ignore-daemonsets", "--force")
	e.want(s, 3, "runs on nodes whatever the label")
	s.alive(gw)
	s.holds(s.nodes[0], false, false, false)
}
