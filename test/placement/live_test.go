package placement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard/placement"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/sweep"
)

const (
	liveNodes  = 30
	liveVolume = 8
	// liveTries is how often a situation is put again that the scheduler answered otherwise: its caches may have been
	// behind the API server by one change.
	liveTries = 8
)

// live is a running cluster and what is known of it.
type live struct {
	*testing.T
	*drawer
	client kubernetes.Interface
	pods   map[types.UID]*corev1.Pod // those that have a node
	store  placement.Volumes
	again  int
}

// TestSchedulerAgrees puts pod after pod before a running scheduler. Each is Pending exactly when the rules say that it
// fits nowhere, and lands on one of the nodes that they name.
func TestSchedulerAgrees(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	c := controlplane.New(t, controlplane.Options{})
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(c.Config()))
	if err != nil {
		t.Fatal(err)
	}
	seed, wanted := sweep.Seed(t, 1), sweep.Size(t, 200, 1000) // each pod is one situation: the cluster as the ones before left it
	t.Logf("seed %d", seed)
	l := &live{T: t, drawer: newDrawer(seed), client: client, pods: map[types.UID]*corev1.Pod{}}
	l.furnish()
	var seen [3]int
	began := time.Now()
	for seen[placed]+seen[pending] < wanted && seen[refused] < wanted {
		l.disturb()
		seen[l.situation()]++
	}
	t.Logf("%d placed, %d Pending, in %s; %d were put again, %d the API server did not take",
		seen[placed], seen[pending], time.Since(began).Round(time.Second), l.again, seen[refused])
	if least := wanted / 10; seen[placed] < least || seen[pending] < least || seen[refused] > least {
		t.Errorf("%d placed, %d Pending and %d refused: too few to compare", seen[placed], seen[pending], seen[refused])
	}
}

// What becomes of a pod: the API server does not take it, it is placed, or it stays Pending.
const (
	refused = iota
	placed
	pending
)

func (l *live) must(what string, err error) {
	l.Helper()
	if err != nil {
		l.Fatalf("%s: %v", what, err)
	}
}

// furnish makes namespaces, nodes and volumes.
func (l *live) furnish() {
	ctx := l.Context()
	for _, name := range spaces {
		_, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: spaceLabels[name]}}, metav1.CreateOptions{})
		l.must("create a namespace", err)
	}
	for i := range liveNodes {
		drawn := l.node(fmt.Sprintf("n%02d", i))
		n := controlplane.Node(drawn.Name)
		n.Labels = drawn.Labels
		n.Spec.Unschedulable = drawn.Spec.Unschedulable
		for _, taint := range drawn.Spec.Taints {
			if taint.Effect != corev1.TaintEffectNoExecute && taint.Key != corev1.TaintNodeUnschedulable { // it would evict pods; the cordon's is a controller's
				n.Spec.Taints = append(n.Spec.Taints, taint)
			}
		}
		n.Status.Capacity, n.Status.Allocatable = drawn.Status.Capacity, drawn.Status.Allocatable
		_, err := l.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		l.must("create a node", err)
		l.csiNode(n.Name, i)
	}
	l.volumes()
}

// csiNode says for two nodes of three how many volumes can be attached there.
func (l *live) csiNode(name string, i int) {
	if i%3 == 2 {
		return
	}
	limit := int32(1 + i%3)
	_, err := l.client.StorageV1().CSINodes().Create(l.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: driver, NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: &limit},
		}}},
	}, metav1.CreateOptions{})
	l.must("create a CSINode", err)
}

// volumes makes claims in every namespace, bound to volumes in a zone or anywhere, for many pods or for one.
func (l *live) volumes() {
	ctx := l.Context()
	no := false
	_, err := l.client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ // nothing attaches here
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no},
	}, metav1.CreateOptions{})
	l.must("create a CSIDriver", err)
	s := &storage{volumes: placement.Volumes{
		Claims: map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, Volumes: map[string]*corev1.PersistentVolume{},
	}}
	for _, namespace := range spaces {
		for i := range liveVolume {
			modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			if i%4 == 3 {
				modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			}
			name := fmt.Sprintf("%s-v%d", namespace, i)
			c := s.claim(namespace, fmt.Sprintf("v%d", i), "", func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes, c.Spec.VolumeName, c.UID = modes, name, "" })
			created, err := l.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, c, metav1.CreateOptions{})
			l.must("create a claim", err)
			s.volume(name, "", nil, func(v *corev1.PersistentVolume) {
				v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: created.Name, UID: created.UID}
				v.Spec.AccessModes, v.Status = modes, corev1.PersistentVolumeStatus{}
				v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
				if i < len(zones) {
					onlyIn(zones[i])(v)
				}
			})
			_, err = l.client.CoreV1().PersistentVolumes().Create(ctx, s.volumes.Volumes[name], metav1.CreateOptions{})
			l.must("create a volume", err)
		}
	}
	l.claims = append(s.names, "missing")
	l.bound()
}

// bound waits until the volume controller has bound every claim, and reads what there is.
func (l *live) bound() {
	ctx := l.Context()
	l.must("bind the claims", controlplane.Poll(ctx, 3*time.Minute, "claims bound", func(ctx context.Context) (bool, string, error) {
		list, err := l.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		open := slices.DeleteFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimBound })
		return len(open) == 0, fmt.Sprintf("%d claims not bound", len(open)), nil
	}))
	l.store = placement.Volumes{
		Claims: map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, Volumes: map[string]*corev1.PersistentVolume{}, CSINodes: map[string]*storagev1.CSINode{},
	}
	claims, err := l.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	l.must("list claims", err)
	for i := range claims.Items {
		c := &claims.Items[i]
		l.store.Claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	volumes, err := l.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	l.must("list volumes", err)
	for i := range volumes.Items {
		l.store.Volumes[volumes.Items[i].Name] = &volumes.Items[i]
	}
	nodes, err := l.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	l.must("list CSINodes", err)
	for i := range nodes.Items {
		l.store.CSINodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
}

// disturb changes something now and then: a pod ends, a node is cordoned or uncordoned.
func (l *live) disturb() {
	ctx := l.Context()
	for len(l.pods) > 0 && l.chance(55) {
		uid := pick(l.drawer, slices.Sorted(maps.Keys(l.pods)))
		l.remove(l.pods[uid])
		delete(l.pods, uid)
	}
	if l.chance(5) {
		name := fmt.Sprintf("n%02d", l.IntN(liveNodes))
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, l.chance(25))
		_, err := l.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		l.must("cordon a node", err)
	}
}

// remove deletes a pod and waits until it is gone.
func (l *live) remove(p *corev1.Pod) {
	pods := l.client.CoreV1().Pods(p.Namespace)
	err := pods.Delete(l.Context(), p.Name, *metav1.NewDeleteOptions(0))
	if err != nil && !apierrors.IsNotFound(err) {
		l.Fatal(err)
	}
	l.must("delete a pod", controlplane.Poll(l.Context(), 2*time.Minute, "pod gone", func(ctx context.Context) (bool, string, error) {
		_, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, p.Name + " is still there", err
	}))
}

// situation puts one pod before the scheduler and compares; it returns what became of the pod.
func (l *live) situation() int {
	drawn := l.constrain(l.pod(pick(l.drawer, spaces)))
	drawn.UID = ""
	for try := 1; ; try++ {
		answer, pod := l.ask(drawn, try)
		if pod == nil {
			return refused
		}
		wrong := disagreement(answer, pod)
		if wrong == "" {
			if pod.Spec.NodeName == "" {
				l.remove(pod)
				return pending
			}
			l.pods[pod.UID] = pod
			return placed
		}
		l.remove(pod)
		if try == liveTries {
			l.Fatalf("%s\nthe rules: %s\n%s", wrong, answer.String(), (&situation{pod: pod}).text(l.T))
		}
		l.again++
		select { // the scheduler's caches may be behind
		case <-time.After(time.Duration(try*try) * 50 * time.Millisecond):
		case <-l.Context().Done():
			l.Fatal(l.Context().Err())
		}
	}
}

// ask creates a pod, computes where it can go as the cluster was before, and waits for what the scheduler does with it. The
// pod is nil when it is not valid.
func (l *live) ask(drawn *corev1.Pod, try int) (*placement.Answer, *corev1.Pod) {
	ctx := l.Context()
	nodes, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	l.must("list nodes", err)
	c := &placement.Cluster{Namespaces: spaceLabels, Volumes: &l.store}
	for i := range nodes.Items {
		c.Nodes = append(c.Nodes, placement.Node{Object: &nodes.Items[i], Whole: true})
	}
	for _, p := range l.pods {
		c.Pods = append(c.Pods, placement.OccupantOf(p))
	}
	p := drawn.DeepCopy()
	p.Name = fmt.Sprintf("%s-%d", drawn.Name, try)
	p, err = l.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if apierrors.IsInvalid(err) {
		return nil, nil
	}
	l.must("create a pod", err)
	asked := p.DeepCopy()
	asked.Spec.NodeName = ""
	answer := placement.New(c).Candidates(asked)
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-tick.C {
		p, err = l.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		l.must("get a pod", err)
		if p.Spec.NodeName != "" || unschedulable(p) != "" {
			return &answer, p
		}
	}
	l.Fatalf("the scheduler did nothing with pod %s in two minutes", p.Name)
	return nil, nil
}

// unschedulable is the scheduler's message about a pod that it could not place, "" when it has not said so.
func unschedulable(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// disagreement says how the scheduler did otherwise than the rules say.
func disagreement(a *placement.Answer, p *corev1.Pod) string {
	switch {
	case a.Unknown != "":
		return "the rules do not know: " + a.Unknown
	case p.Spec.NodeName == "" && len(a.Nodes) > 0:
		return fmt.Sprintf("Pending (%s), where the rules say it fits on %s", unschedulable(p), strings.Join(a.Nodes, ", "))
	case p.Spec.NodeName != "" && !slices.Contains(a.Nodes, p.Spec.NodeName):
		return fmt.Sprintf("placed on %s, where the rules say %q", p.Spec.NodeName, reasons(*a)[p.Spec.NodeName])
	}
	return ""
}
