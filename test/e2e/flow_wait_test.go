package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

// ownZone gives the nodes of a test a zone: the controllers taint one failed node of a zone every ten seconds.
func ownZone(t *testing.T) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = strings.ToLower(t.Name()) }
}

// silent makes the kubelet of a node silent: Ready is Unknown.
func (s *scene) silent(name string) {
	s.Helper()
	s.patchNode(name, `{"metadata":{"annotations":{"`+controlplane.Ready+`":"false"}}}`, "test")
	s.condition(name, corev1.ConditionUnknown, "NodeStatusUnknown")
	s.tainted(name, 2) // NoSchedule and NoExecute
}

func (s *scene) condition(name string, ready corev1.ConditionStatus, reason string) {
	s.Helper()
	patch := `{"status":{"conditions":[{"type":"Ready","status":"` + string(ready) + `","reason":"` + reason + `"}]}}`
	_, err := s.Client.CoreV1().Nodes().Patch(s.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		s.Fatal(err)
	}
}

// TestC32UnreachableNode: the eviction is accepted, no kubelet confirms it; past the deletion time and a margin the pod is
// no longer waited for, and the run says so.
func TestC32UnreachableNode(t *testing.T) {
	s := newScene(t, 2, ownZone(t))
	pod := s.pod("p", "p-1", s.nodes[0], graceOf(2, "never"))
	s.pod("p", "p-2", s.nodes[1])
	s.Service("p")
	s.EndpointsReady("p", 2)
	s.silent(s.nodes[0])
	s.remember()
	e := s.run(s.nodes[0], "--force", "--accept-unproven=all", "--timeout=80s", "-o", "json")
	e.want(s, 0, "not confirmed by the kubelet")
	if _, ok := findingCodes(e.report(s))[guard.NodeUnreachable]; !ok {
		t.Errorf("no NodeUnreachable in %s", e.stdout)
	}
	done := time.Now()
	s.journal.never("gone p-1")
	got, err := s.Client.CoreV1().Pods(s.Namespace).Get(s.Context(), "p-1", metav1.GetOptions{})
	if err != nil || got.UID != pod.UID || got.DeletionTimestamp == nil {
		t.Fatalf("the pod was to be terminating still: %v, %v", err, got.DeletionTimestamp)
	}
	if waited := done.Sub(got.DeletionTimestamp.Time); waited < 30*time.Second {
		t.Errorf("done %s after the end of the grace period, want a margin of 30s", waited)
	}
	s.holds(s.nodes[0], true, false, true)
	s.back(s.nodes[0])
}

// TestC32OneReplica: a budget that waits for the very pod that is dead never allows its eviction: refused.
func TestC32OneReplica(t *testing.T) {
	s := newScene(t, 2, ownZone(t))
	pod := s.pod("q", "q-1", s.nodes[0], controlplane.With(map[string]string{controlplane.Ready: "false"}))
	s.Budget("q", intstr.FromInt(1))
	s.silent(s.nodes[0])
	s.remember()
	s.Wait("q-1 runs", func(ctx context.Context) (bool, string, error) {
		p, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, "q-1", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning, "not yet", err
	})
	e := s.run(s.nodes[0], "--force", "-o", "json")
	e.want(s, 3)
	if f, ok := findingCodes(e.report(s))[guard.BudgetNever]; !ok || f.Budget != s.Namespace+"/q" {
		t.Errorf("no BudgetNever for the budget in %s", e.stdout)
	}
	s.alive(pod)
	s.standsAsBefore(s.nodes[0])
}

// TestC32NotReadyWithKubelet: a node that is not Ready, whose kubelet lives, is drained by the normal rules.
func TestC32NotReadyWithKubelet(t *testing.T) {
	s := newScene(t, 2, ownZone(t))
	pod := s.pod("p", "p-1", s.nodes[0], graceOf(30, "3"))
	s.patchNode(s.nodes[0], `{"metadata":{"annotations":{"`+controlplane.Ready+`":"false"}}}`, "test")
	s.condition(s.nodes[0], corev1.ConditionFalse, "KubeletNotReady")
	s.tainted(s.nodes[0], 2)
	s.remember()
	e := s.run(s.nodes[0], "--force")
	e.want(s, 0)
	if strings.Contains(e.stderr, "not confirmed") {
		t.Errorf("a live kubelet was taken for a silent one:\n%s", e.stderr)
	}
	s.gone(pod)
	s.journal.inOrder("evicted p-1", "gone p-1")
	s.back(s.nodes[0])
}

// TestC36DefaultGrace: an eviction asks for no grace period unless told, and the run ends when the pod has.
func TestC36DefaultGrace(t *testing.T) {
	s := newScene(t, 1)
	pod := s.pod("p", "p-1", s.nodes[0], graceOf(300, "5"))
	s.remember()
	r := s.relay(nil)
	e := s.run(s.nodes[0], "--force", "--timeout=60s")
	e.want(s, 0, "Warning: the timeout of 1m0s is shorter than the grace period of pod "+s.Namespace+"/p-1")
	calls := r.of("p-1")
	if len(calls) != 1 {
		t.Fatalf("%d evictions, want 1", len(calls))
	}
	o := calls[0].eviction.DeleteOptions
	if o == nil || o.GracePeriodSeconds != nil || o.Preconditions == nil || *o.Preconditions.UID != pod.UID {
		t.Errorf("delete options %+v: want the UID and no grace period", o)
	}
	if served := s.journal.get("gone p-1").at.Sub(s.journal.get("evicted p-1").at); served < 3*time.Second || e.took < served {
		t.Errorf("the pod served %s, the run took %s", served, e.took)
	}
	s.back(s.nodes[0])
}

// TestC36AskedGrace: one that is asked for is sent.
func TestC36AskedGrace(t *testing.T) {
	s := newScene(t, 1)
	s.pod("p", "p-1", s.nodes[0], graceOf(300, "200"))
	s.remember()
	r := s.relay(nil)
	e := s.run(s.nodes[0], "--force", "--grace-period=2", "--timeout=60s")
	e.want(s, 0)
	if o := r.of("p-1")[0].eviction.DeleteOptions; o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 2 {
		t.Errorf("delete options %+v: want a grace period of 2", o)
	}
	if e.took > 50*time.Second { // less than the timeout, and than the pod's own 200s
		t.Errorf("took %s with a grace period of 2s", e.took)
	}
	s.back(s.nodes[0])
}

func emptyDir(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

// TestC34PodKinds: the kinds of pods that a drain refuses without a flag are all named at once, before anything changes;
// with the flags they go, finished ones without any, a terminating one is waited for, and DaemonSet pods stay.
func TestC34PodKinds(t *testing.T) {
	s := newScene(t, 2)
	n1 := s.nodes[0]
	bare := s.pod("bare", "bare", n1)
	local := s.Deployment("local", 1, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeName = n1
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	plain := s.Deployment("plain", 1, func(d *appsv1.Deployment) { d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname] = n1 })
	agent := s.daemonSetOf("agent")
	finished := s.pod("done", "done", n1, emptyDir)
	s.finish(finished)
	ending := s.pod("ending", "ending", n1, graceOf(30, "12"))
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(s.Context(), "ending", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.remember()
	e := s.run(n1)
	e.want(s, 3, "3 flags missing", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
	s.alive(bare, &local[0], &plain[0])
	s.journal.never("cordoned "+n1, "evicted done")
	s.standsAsBefore(n1)
	s.scaleAway("local") // it is bound to the node by its template and would come back
	e = s.run(n1, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "-o", "json")
	e.want(s, 0)
	s.gone(bare, &plain[0], finished, ending)
	s.alive(agent)
	s.journal.inOrder("evicted bare", "gone ending") // what terminates already holds nobody
	r := e.report(s)
	if !slices.ContainsFunc(r.Pods, func(p guard.PodPlan) bool { return p.Name == agent.Name && p.Action == guard.ActionSkip }) {
		t.Errorf("the DaemonSet's pod is not among the skipped ones: %+v", r.Pods)
	}
	s.back(n1)
}

// daemonSetOf makes a DaemonSet for all nodes of the scene and returns its pod on the first.
func (s *scene) daemonSetOf(app string) *corev1.Pod {
	s.Helper()
	labels := map[string]string{controlplane.AppLabel: app}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{controlplane.PoolLabel: s.Namespace},
				Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/agent"}},
			},
		},
	}}
	if _, err := s.Client.AppsV1().DaemonSets(s.Namespace).Create(s.Context(), ds, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	for _, p := range s.PodsReady(app, len(s.nodes)) {
		if p.Spec.NodeName == s.nodes[0] {
			return &p
		}
	}
	s.Fatalf("no pod of %s on %s", app, s.nodes[0])
	return nil
}

// finish makes a pod end well.
func (s *scene) finish(pod *corev1.Pod) {
	s.Helper()
	patch := []byte(`{"status":{"phase":"Succeeded"}}`)
	if _, err := s.Client.CoreV1().Pods(s.Namespace).Patch(s.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		s.Fatal(err)
	}
}

// scaleAway scales a Deployment to nothing and waits until its pods are gone.
func (s *scene) scaleAway(name string) {
	s.Helper()
	patch := []byte(`{"spec":{"replicas":0}}`)
	if _, err := s.Client.AppsV1().Deployments(s.Namespace).Patch(s.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
	s.PodsReady(name, 0)
}
