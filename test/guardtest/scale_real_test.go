package guardtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/sweep"
)

const (
	perNamespace = 8
	scaleWorkers = 16
	// inTime is for how long after it was made a prediction holds.
	inTime = 10 * time.Second
)

// scaling is one ReplicaSet, perhaps with a sibling, and pods that the test makes itself, as a scheduler and kubelets would
// have: the ReplicaSets adopt them.
type scaling struct {
	namespace, name string
	owned           bool // by a controller of its own, so that the ReplicaSets rank pods by node
	pods            []*corev1.Pod
	statuses        []corev1.PodStatus
	deleted         []bool
	after           int32
}

// TestVictimsOfRealController shows that guard predicts, from what it reads live, which pods the real ReplicaSet controller
// deletes: none that is said to stay, every one that is said to go.
func TestVictimsOfRealController(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	c := controlplane.New(t, controlplane.Options{WithoutKwok: true, WithoutScheduler: true})
	client := c.Client()
	for _, name := range []string{"n1", "n2", "n3"} {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), controlplane.Node(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s := sweep.Seed(t, rand.Uint64())
	wanted := sweep.Size(t, 100, 500) // judged in time
	scalings := wanted * 9 / 8
	r := rand.New(rand.NewPCG(s, 3))
	var all []*scaling
	for i := range scalings {
		all = append(all, randomScaling(r, fmt.Sprintf("scale-%d", i/perNamespace), fmt.Sprintf("s-%d", i)))
	}
	began := time.Now()
	for i := 0; i < scalings; i += perNamespace {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: all[i].namespace}}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	inParallel(t, all, func(ctx context.Context, k *scaling) error { return k.makePods(ctx, client, 0) })
	inParallel(t, all, func(ctx context.Context, k *scaling) error { return k.makePods(ctx, client, 1) })
	made := time.Since(began)
	var mu sync.Mutex
	certain, undetermined, late := 0, 0, 0
	inParallel(t, all, func(ctx context.Context, k *scaling) error {
		if err := k.makeSets(ctx, client); err != nil {
			return err
		}
		plan, took, err := k.scale(ctx, client)
		mu.Lock()
		defer mu.Unlock()
		switch _, may := split(plan); {
		case took > inTime:
			late++
			return nil
		case len(may) > 0:
			undetermined++
		default:
			certain++
		}
		return err
	})
	t.Logf("seed %d: pods made in %s, all in %s: %d certain, %d undetermined, %d too late to count", s, made.Round(time.Second),
		time.Since(began).Round(time.Second), certain, undetermined, late)
	if certain+undetermined < wanted || certain < wanted/2 {
		t.Errorf("%d situations, %d of them certain: too few", certain+undetermined, certain)
	}
}

// inParallel does the same for all, and ends the test when one fails.
func inParallel(t *testing.T, all []*scaling, do func(context.Context, *scaling) error) {
	t.Helper()
	jobs := make(chan *scaling)
	var group sync.WaitGroup
	for range scaleWorkers {
		group.Go(func() {
			for k := range jobs {
				if err := do(t.Context(), k); err != nil {
					t.Errorf("%s/%s: %v\n%s", k.namespace, k.name, err, k.describe())
				}
			}
		})
	}
	for _, k := range all {
		jobs <- k
	}
	close(jobs)
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func randomScaling(r *rand.Rand, namespace, name string) *scaling {
	k := &scaling{namespace: namespace, name: name, owned: !oneIn(r, 8)}
	ages := []time.Duration{0, time.Second, 3 * time.Second, 20 * time.Second, 5 * time.Minute, 5*time.Minute + time.Second, time.Hour, 40 * time.Hour}
	active := 0
	for i := range 3 + r.IntN(5) {
		set := name
		if k.owned && oneIn(r, 4) {
			set = name + "-old"
		}
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: fmt.Sprintf("%s-%d", name, i), Labels: map[string]string{"set": set}, Annotations: map[string]string{},
			},
			Spec: corev1.PodSpec{
				NodeName:   pick(r, "n1", "n1", "n1", "n2", "n2", "n3"),
				Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
			},
		}
		if oneIn(r, 20) {
			p.Spec.NodeName = ""
		}
		if oneIn(r, 6) {
			p.Annotations[corev1.PodDeletionCost] = pick(r, "-10", "5", "100")
		}
		status := corev1.PodStatus{Phase: corev1.PodRunning}
		if oneIn(r, 15) {
			status.Phase = pick(r, corev1.PodPending, corev1.PodUnknown, corev1.PodFailed)
		}
		ready := pick(r, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse)
		at := metav1.NewTime(time.Now().Add(-pick(r, ages...)).Add(-time.Duration(r.IntN(3)) * time.Second).Truncate(time.Second))
		status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: at}}
		if oneIn(r, 4) {
			status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "example.invalid/app", RestartCount: int32(r.IntN(3))}}
		}
		gone := p.Spec.NodeName != "" && status.Phase != corev1.PodFailed && oneIn(r, 15)
		k.pods, k.statuses, k.deleted = append(k.pods, p), append(k.statuses, status), append(k.deleted, gone)
		if set == name && status.Phase != corev1.PodFailed && !gone {
			active++
		}
	}
	k.after = int32(r.IntN(max(active, 1)))
	return k
}

// makePods makes every other pod, so that those of two calls differ in age.
func (k *scaling) makePods(ctx context.Context, client kubernetes.Interface, half int) error {
	pods := client.CoreV1().Pods(k.namespace)
	for i := half; i < len(k.pods); i += 2 {
		p, err := pods.Create(ctx, k.pods[i], metav1.CreateOptions{})
		if err != nil {
			return err
		}
		p.Status = k.statuses[i]
		if k.pods[i], err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if k.deleted[i] {
			if err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeSets makes the ReplicaSets, of as many replicas as there are pods, and waits until they have adopted them.
func (k *scaling) makeSets(ctx context.Context, client kubernetes.Interface) error {
	var owner []metav1.OwnerReference
	if k.owned {
		m, err := client.CoreV1().ConfigMaps(k.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: k.name}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		yes := true
		owner = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: m.Name, UID: m.UID, Controller: &yes}}
	}
	for _, name := range []string{k.name, k.name + "-old"} {
		if name != k.name && !k.owned {
			continue
		}
		replicas := k.active(name)
		labels := map[string]string{"set": name}
		set := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owner},
			Spec: appsv1.ReplicaSetSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: k.pods[0].Spec},
			},
		}
		if _, err := client.AppsV1().ReplicaSets(k.namespace).Create(ctx, set, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := k.settled(ctx, client, name, replicas); err != nil {
			return err
		}
	}
	return nil
}

func (k *scaling) active(set string) int32 {
	n := int32(0)
	for i, p := range k.pods {
		if p.Labels["set"] == set && controller.IsPodActive(p) && !k.deleted[i] {
			n++
		}
	}
	return n
}

// settled waits until the controller has seen a set as it is, with that many pods.
func (k *scaling) settled(ctx context.Context, client kubernetes.Interface, set string, replicas int32) error {
	return controlplane.Poll(ctx, 2*time.Minute, "replicaset "+set, func(ctx context.Context) (bool, string, error) {
		r, err := client.AppsV1().ReplicaSets(k.namespace).Get(ctx, set, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return r.Status.ObservedGeneration == r.Generation && r.Status.Replicas == replicas, fmt.Sprintf("%d of %d", r.Status.Replicas, replicas), nil
	})
}

// scale predicts, scales, and compares with what went; it also returns the time from the prediction until that was seen.
func (k *scaling) scale(ctx context.Context, client kubernetes.Interface) (*guard.ScalePlan, time.Duration, error) {
	sets := client.AppsV1().ReplicaSets(k.namespace)
	target, err := cluster.ReadScaleTarget(ctx, client, cluster.KindReplicaSet, guard.Key{Namespace: k.namespace, Name: k.name})
	if err != nil {
		return &guard.ScalePlan{}, 0, err
	}
	now := time.Now()
	plan := guard.JudgeScale(target, noNodes{}, k.after, now)
	scale, err := sets.GetScale(ctx, k.name, metav1.GetOptions{})
	if err != nil {
		return &plan, 0, err
	}
	scale.Spec.Replicas = k.after
	if _, err := sets.UpdateScale(ctx, k.name, scale, metav1.UpdateOptions{}); err != nil {
		return &plan, 0, err
	}
	if err := k.settled(ctx, client, k.name, k.after); err != nil {
		return &plan, 0, err
	}
	took := time.Since(now)
	list, err := client.CoreV1().Pods(k.namespace).List(ctx, metav1.ListOptions{LabelSelector: "set=" + k.name})
	if err != nil {
		return &plan, took, err
	}
	left := map[types.UID]bool{}
	for i := range list.Items {
		left[list.Items[i].UID] = controller.IsPodActive(&list.Items[i])
	}
	var taken []types.UID
	for i, p := range k.pods {
		if p.Labels["set"] == k.name && controller.IsPodActive(p) && !k.deleted[i] && !left[p.UID] {
			taken = append(taken, p.UID)
		}
	}
	will, may := split(&plan)
	return &plan, took, agrees(will, may, taken, &plan)
}

func (k *scaling) describe() string {
	lines := []string{fmt.Sprintf("to %d, owned %t", k.after, k.owned)}
	for i, p := range k.pods {
		lines = append(lines, fmt.Sprintf("%s %s set %s node %q cost %q created %s deleted %t phase %s conditions %v restarts %v", p.Name, p.UID, p.Labels["set"], p.Spec.NodeName,
			p.Annotations[corev1.PodDeletionCost], p.CreationTimestamp.Format(time.TimeOnly), k.deleted[i], k.statuses[i].Phase, k.statuses[i].Conditions, k.statuses[i].ContainerStatuses))
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}
