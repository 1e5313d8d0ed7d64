package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/controlplane"
)

// soloShop is a Service behind MetalLB with the only pod of a Deployment on the first node, under a budget that wants one
// pod; a pod takes a second to be Ready.
type soloShop struct {
	*scene
	n1  string
	pod corev1.Pod
	was *appsv1.Deployment
}

func newSoloShop(t *testing.T, nodes int, mutate ...func(*appsv1.Deployment)) *soloShop {
	t.Helper()
	s := &soloShop{scene: newScene(t, nodes)}
	s.metalLB(s.nodes...)
	mutate = append([]func(*appsv1.Deployment){controlplane.Template(map[string]string{controlplane.ReadyAfter: "1"})}, mutate...)
	s.pod = s.Deployment("web", 1, mutate...)[0]
	s.n1 = s.pod.Spec.NodeName
	other := s.nodes[0]
	if other == s.n1 {
		other = s.nodes[1]
	}
	s.Budget("web", intstr.FromInt32(1))
	svc := s.loadBalancer(metallbtest.L2, "web", localPolicy)
	s.EndpointsReady("web", 1)
	s.speakers(metallbtest.L2, svc, s.n1, other, lbStep{200 * time.Millisecond, hooktest.Out})
	s.remember()
	s.was = s.deployment()
	return s
}

func (s *soloShop) deployment() *appsv1.Deployment {
	s.Helper()
	d, err := s.Client.AppsV1().Deployments(s.Namespace).Get(s.Context(), "web", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// asBefore waits until the Deployment, its ReplicaSet and its pods bear nothing of a surge, and the spec is what it was.
func (s *soloShop) asBefore() {
	s.Helper()
	s.Wait("as many pods as before", func(ctx context.Context) (bool, string, error) {
		pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=web"})
		return err == nil && len(pods.Items) == int(*s.was.Spec.Replicas), fmt.Sprint(len(pods.Items)), err
	})
	now := s.deployment()
	if diff := cmp.Diff(s.was.Spec, now.Spec) + cmp.Diff(s.was.Labels, now.Labels) + cmp.Diff(s.was.Annotations, now.Annotations); diff != "" {
		s.Errorf("the Deployment is not as before:\n%s", diff)
	}
	pods, err := s.Client.CoreV1().Pods(s.Namespace).List(s.Context(), metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=web"})
	if err != nil {
		s.Fatal(err)
	}
	for i := range pods.Items {
		if cost, ok := pods.Items[i].Annotations[corev1.PodDeletionCost]; ok {
			s.Errorf("pod %s is left with the deletion cost %s", pods.Items[i].Name, cost)
		}
	}
}

func (s *soloShop) args(more ...string) []string {
	return append([]string{s.n1, "--ignore-daemonsets", "--surge", "--settle=0s"}, more...)
}

// TestSurgeBeforeTheLast: without --surge the plan refuses and names the way out; with it the replacement is Ready before the
// only pod is evicted, within its budget, and the Deployment is what it was.
func TestSurgeBeforeTheLast(t *testing.T) {
	s := newSoloShop(t, 3)
	s.run("plan", s.n1, "--ignore-daemonsets").want(s.scene, 3)
	if e := s.run("plan", s.n1, "--ignore-daemonsets"); !containsAll(e.stdout, "--surge brings a replacement first: one more replica of deployment "+s.Namespace+"/web") {
		t.Errorf("the plan does not name the way out:\n%s", e.stdout)
	}
	e := s.run(s.args("-o", "json")...)
	e.want(s.scene, 0)
	r := e.report(s.scene)
	if len(r.Surges) != 1 || r.Surges[0].Replicas == nil || *r.Surges[0].Replicas != (guard.Count{Before: 1, After: 2}) {
		t.Errorf("surges of the report: %+v", r.Surges)
	}
	fresh := s.PodsReady("web", 1)[0]
	s.journal.inOrder("ready "+fresh.Name, "evicted "+s.pod.Name)
	if fresh.Spec.NodeName == s.n1 {
		t.Errorf("the replacement is on the drained node")
	}
	s.asBefore()
	s.back(s.n1)
}

func containsAll(text string, parts ...string) bool {
	joined := strings.Join(strings.Fields(text), " ")
	for _, p := range parts {
		if !strings.Contains(joined, p) {
			return false
		}
	}
	return true
}

// TestSurgeByTheAutoscaler: where an autoscaler owns the number, its least is raised, or that of the ScaledObject which KEDA
// made it from; all are what they were.
func TestSurgeByTheAutoscaler(t *testing.T) {
	t.Run("alone", surgeByAutoscaler)
	t.Run("of KEDA", surgeByKEDA)
}

func surgeByKEDA(t *testing.T) {
	s := newSoloShop(t, 2)
	was := s.scaledObject()
	s.run(s.args()...).want(s.scene, 0, "minReplicaCount of scaledobject/web none -> 2")
	s.journal.inOrder("ready "+s.PodsReady("web", 1)[0].Name, "evicted "+s.pod.Name)
	now, err := s.dynamic.Resource(scaledObjects).Namespace(s.Namespace).Get(s.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was.Object["spec"], now.Object["spec"]) + cmp.Diff(was.GetLabels(), now.GetLabels()); diff != "" {
		t.Errorf("the ScaledObject is not as before:\n%s", diff)
	}
	s.asBefore()
}

func surgeByAutoscaler(t *testing.T) {
	s := newSoloShop(t, 3)
	autoscalers := s.Client.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace)
	least := int32(1)
	h, err := autoscalers.Create(s.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    &least, MaxReplicas: 2,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := s.run(s.args()...)
	e.want(s.scene, 0, "minReplicas of horizontalpodautoscaler/web 1 -> 2")
	s.journal.inOrder("ready "+s.PodsReady("web", 1)[0].Name, "evicted "+s.pod.Name)
	now, err := autoscalers.Get(s.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h.Spec, now.Spec) + cmp.Diff(h.Labels, now.Labels); diff != "" {
		t.Errorf("the autoscaler is not as before:\n%s", diff)
	}
	s.asBefore()

	// At its largest number there is no surge, and the plan says so.
	if _, err := autoscalers.Patch(s.Context(), "web", types.MergePatchType, []byte(`{"spec":{"maxReplicas":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	on := s.PodsReady("web", 1)[0].Spec.NodeName
	e = s.run("plan", on, "--ignore-daemonsets", "--surge")
	e.want(s.scene, 3)
	if !containsAll(e.stdout, "horizontalpodautoscaler/web is at its largest number, 1") {
		t.Errorf("the plan does not say why:\n%s", e.stdout)
	}
}

// TestSurgeKilled ends a drain by kill -9 at every third of its writes. Uncordon puts back what was raised, and so does the next run.
func TestSurgeKilled(t *testing.T) {
	for name, then := range map[string]func(*soloShop){
		"undone":  func(s *soloShop) { s.back(s.n1) },
		"resumed": func(s *soloShop) { s.run(s.args("--take-over")...).want(s.scene, 0); s.asBefore(); s.back(s.n1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSoloShop(t, 2)
			n, came := int32(1), true
			for ; came && n < mostWrites; n += 3 {
				k := &step{scene: s.scene, victim: s.n1}
				came = k.killAtWrite(n, s.args()...)
				then(s)
				s.asBefore()
				if _, marked := s.deployment().Labels[surge.Label]; marked {
					t.Fatalf("killed at write %d: the mark is left", n)
				}
				s.home()
			}
			if n < 6 || n >= mostWrites {
				t.Errorf("killed at %d writes", n-1)
			}
		})
	}
}

// home brings the pod back to the first node, if it went.
func (s *soloShop) home() {
	s.Helper()
	pod := s.PodsReady("web", 1)[0]
	if pod.Spec.NodeName == s.n1 {
		return
	}
	others := pod.Spec.NodeName
	s.patchNode(others, `{"spec":{"unschedulable":true}}`, "test")
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(s.Context(), pod.Name, *metav1.NewDeleteOptions(0)); err != nil {
		s.Fatal(err)
	}
	s.Wait("the pod is back", func(ctx context.Context) (bool, string, error) {
		return len(s.podsOn("web", s.n1)) == 1 && len(s.podsOn("web", others)) == 0, "", nil
	})
	s.PodsReady("web", 1)
	s.patchNode(others, `{"spec":{"unschedulable":null}}`, "test")
	s.tainted(others, 0)
	s.EndpointsReady("web", 1)
}

// TestSurgeChangedMeanwhile: a number that somebody else sets while the surge stands is left as it is, and said.
func TestSurgeChangedMeanwhile(t *testing.T) {
	s := newSoloShop(t, 2, controlplane.Template(map[string]string{controlplane.ReadyAfter: "4"}))
	b := begin(s, s.args()...)
	b.says(s.Env, "starting one more replica of deployment "+s.Namespace+"/web: replicas 1 -> 2")
	_, err := s.Client.AppsV1().Deployments(s.Namespace).Patch(s.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	said, code := b.end()
	if code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	wantSaid(t, said, `set to 3 meanwhile by "somebody"`)
	d := s.deployment()
	if _, marked := d.Labels[surge.Label]; marked || *d.Spec.Replicas != 3 {
		t.Errorf("%d replicas, marked %t: want the 3 of somebody else and no mark\n%s", *d.Spec.Replicas, marked, said)
	}
	s.standsAsBefore(s.n1)
}

// quota allows no more pods than are there, and with scopes only counts the pods of these. The API server denies by its
// status, which is written here until the controller has counted.
func (s *soloShop) quota(scopes ...corev1.ResourceQuotaScope) {
	s.Helper()
	quotas := s.Client.CoreV1().ResourceQuotas(s.Namespace)
	q, err := quotas.Create(s.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec:       corev1.ResourceQuotaSpec{Scopes: scopes, Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: q.Spec.Hard}
	if _, err := quotas.UpdateStatus(s.Context(), q, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) { // counted already
		s.Fatal(err)
	}
}

// unlimited takes the quota away, and waits until the API server's admission knows.
func (s *soloShop) unlimited() {
	s.Helper()
	if err := s.Client.CoreV1().ResourceQuotas(s.Namespace).Delete(s.Context(), "one", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	more := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one-more"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}}}
	s.Wait("no quota", func(ctx context.Context) (bool, string, error) {
		_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, more, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil, fmt.Sprint(err), err
	})
}

// TestSurgeImpossible: what cannot be surged is said with its reason, and nothing changes; what the API server alone knows is
// tried, and undone.
func TestSurgeImpossible(t *testing.T) {
	s := newSoloShop(t, 2, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	})
	for _, q := range []struct {
		scopes []corev1.ResourceQuotaScope
		code   int
		says   string
	}{
		{nil, 3, "none of deployment " + s.Namespace + "/web: quota one has no room for one more pod: "},
		{[]corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}, 4, "exceeded quota: one, requested: pods=1, used: pods="},
	} {
		s.quota(q.scopes...)
		e := s.run(s.args()...)
		e.want(s.scene, q.code)
		if !containsAll(e.stderr, q.says) {
			t.Errorf("the reason %q is missing:\n%s", q.says, e.stderr)
		}
		s.alive(&s.pod)
		s.asBefore()
		s.standsAsBefore(s.n1)
		s.unlimited()
	}
	other := s.nodes[0]
	if other == s.n1 {
		other = s.nodes[1]
	}
	s.Env.Pod("takes-the-port", other, func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	})
	e := s.run(s.args()...)
	e.want(s.scene, 3)
	if !containsAll(e.stderr, "none of deployment "+s.Namespace+"/web: a further pod fits nowhere") {
		t.Errorf("the reason is missing:\n%s", e.stderr)
	}
	s.asBefore()
	s.standsAsBefore(s.n1)
}

// TestSurgeAndDeadline: a replacement that comes in time for the deadline goes before, and nothing of the surge is left.
func TestSurgeAndDeadline(t *testing.T) {
	s := newSoloShop(t, 2, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](2)
	})
	s.run(s.args("--deadline=1m")...).want(s.scene, 0)
	s.journal.inOrder("ready "+s.PodsReady("web", 1)[0].Name, "evicted "+s.pod.Name)
	s.asBefore()
	s.back(s.n1)
}
