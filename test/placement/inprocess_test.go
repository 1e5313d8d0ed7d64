package placement

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/profile"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/guard/placement"
	"github.com/safedrain/safedrain/test/sweep"
)

// oracle is the scheduler's own framework, with its default profile, over clusters that are put before it.
type oracle struct {
	ctx      context.Context
	snapshot *internalcache.Snapshot
	profile  framework.Framework
}

func newOracle(t *testing.T, s *storage) *oracle {
	t.Helper()
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	objects := slices.Clone(s.objects)
	for _, name := range spaces {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: spaceLabels[name]}})
	}
	client := fake.NewClientset(objects...)
	factory := scheduler.NewInformerFactory(client, 0, nil)
	o := &oracle{ctx: ctx, snapshot: internalcache.NewEmptySnapshot()}
	recorders := profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()}))
	sched, err := scheduler.New(ctx, client, factory, nil, recorders, scheduler.WithNodeInfoSnapshot(o.snapshot))
	if err != nil {
		t.Fatal(err)
	}
	o.profile = sched.Profiles[corev1.DefaultSchedulerName]
	o.sync(t, factory)
	return o
}

// sync waits until the informers have seen every object, and the caches that hang on them.
func (o *oracle) sync(t *testing.T, factory informers.SharedInformerFactory) {
	t.Helper()
	factory.Start(o.ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(o.ctx.Done()) {
		if !ok {
			t.Fatalf("%v did not sync", kind)
		}
	}
	ctx, cancel := context.WithTimeout(o.ctx, 10*time.Second)
	defer cancel()
	probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns-c", Name: "probe"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "bound"}},
	}}}}
	node := newDrawer(0).node("n00")
	node.Spec, node.Labels = corev1.NodeSpec{}, nil
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if why := o.feasible(&situation{nodes: []*corev1.Node{node}, pod: probe})["n00"]; !strings.Contains(why, "not found") && !strings.Contains(why, "not exist") {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("the caches of volumes did not sync")
		case <-tick.C:
		}
	}
}

// feasible is the scheduler's reason against each node, "" for none.
func (o *oracle) feasible(s *situation) map[string]string {
	*o.snapshot = *internalcache.NewSnapshot(s.counted(), s.nodes)
	state := framework.NewCycleState()
	out := map[string]string{}
	result, status, _ := o.profile.RunPreFilterPlugins(o.ctx, state, s.pod)
	for _, n := range s.nodes {
		info, err := o.snapshot.Get(n.Name)
		switch {
		case err != nil:
			out[n.Name] = err.Error()
		case !status.IsSuccess():
			out[n.Name] = status.Message()
		case !result.AllNodes() && !result.NodeNames.Has(n.Name):
			out[n.Name] = "left out by PreFilter"
		default:
			out[n.Name] = ""
			if st := o.profile.RunFilterPlugins(o.ctx, state, s.pod, info); !st.IsSuccess() {
				out[n.Name] = st.Plugin() + ": " + st.Message()
			}
		}
	}
	return out
}

// situation is a cluster and a pod that is looking for a node in it.
type situation struct {
	nodes []*corev1.Node
	there []*corev1.Pod
	pod   *corev1.Pod
}

// counted are the pods that the scheduler's informer would see as assigned: it does not look at finished ones.
func (s *situation) counted() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(s.there), func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// ours are the rules' reasons against each node.
func (s *situation) ours(v *placement.Volumes) map[string]string {
	c := &placement.Cluster{Namespaces: spaceLabels, Volumes: v}
	for _, n := range s.nodes {
		c.Nodes = append(c.Nodes, placement.Node{Object: n, Whole: true})
	}
	for _, p := range s.there {
		if placement.Counts(p) {
			c.Pods = append(c.Pods, placement.OccupantOf(p))
		}
	}
	return reasons(placement.New(c).Candidates(s.pod))
}

func reasons(a placement.Answer) map[string]string {
	out := map[string]string{}
	for _, n := range a.Nodes {
		out[n] = ""
	}
	for _, r := range a.Refused {
		out[r.Node] = r.Reason
	}
	return out
}

// situation draws a cluster and a pod.
func (d *drawer) situation() *situation {
	s := &situation{}
	first := d.IntN(12)
	for i := range 1 + d.IntN(8) {
		s.nodes = append(s.nodes, d.node(fmt.Sprintf("n%02d", (first+i)%12)))
	}
	for range d.IntN(20) {
		p := d.pod(pick(d, spaces))
		p.Spec.NodeName = pick(d, s.nodes).Name
		d.constrainPods(p)
		if d.chance(10) {
			now := metav1.Now()
			p.DeletionTimestamp = &now
		}
		if d.chance(5) {
			p.Status.Phase = pick(d, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed})
		}
		if d.chance(5) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main", AllocatedResources: corev1.ResourceList{corev1.ResourceCPU: quantity(1+d.IntN(3), "")},
			}}
		}
		s.there = append(s.there, p)
	}
	s.pod = d.constrain(d.pod(pick(d, spaces)))
	if d.chance(2) {
		s.pod.Spec.NodeName = pick(d, s.nodes).Name
	}
	if d.chance(2) {
		s.pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: quantity(500, "m")}
	}
	return s
}

// TestFiltersAgree compares, on random clusters, the nodes on which the scheduler's filters let a pod with those of the
// rules, and asks that every filter had something to say.
func TestFiltersAgree(t *testing.T) {
	store := newStorage()
	o := newOracle(t, store)
	seen := map[string]int{}
	fits := 0
	first, n := sweep.Seed(t, 1), sweep.Size(t, 5_000, 50_000)
	for seed := first; seed < first+uint64(n); seed++ {
		d := newDrawer(seed)
		d.claims, d.inline = store.names, true
		s := d.situation()
		theirs, ours := o.feasible(s), s.ours(&store.volumes)
		for _, n := range s.nodes {
			their, our := theirs[n.Name], ours[n.Name]
			if (their == "") != (our == "") {
				t.Fatalf("seed %d: node %s: the scheduler says %q, the rules %q\n%s", seed, n.Name, their, our, s.text(t))
			}
			if their == "" {
				fits++
			}
			plugin, _, _ := strings.Cut(their, ":")
			seen[plugin]++
		}
	}
	t.Logf("%d situations, %d nodes that fit; by plugin: %v", n, fits, seen)
	for _, plugin := range []string{
		"NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions",
		"NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
	} {
		if seen[plugin] < n/1000 {
			t.Errorf("%s refused %d nodes: too few to compare", plugin, seen[plugin])
		}
	}
	if fits < n/2 {
		t.Errorf("only %d nodes fit", fits)
	}
}

// text writes a situation down, so that it can be looked at.
func (s *situation) text(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, o := range append(toObjects(s.nodes), append(toObjects(s.there), runtime.Object(s.pod))...) {
		raw, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "---\n%s", raw)
	}
	return b.String()
}

func toObjects[T runtime.Object](of []T) []runtime.Object {
	out := make([]runtime.Object, len(of))
	for i := range of {
		out[i] = of[i]
	}
	return out
}
