package gate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/gate/keeper"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// keepers runs the controller of the marks, with short times, on what a test sees.
func (s *small) keepers(after time.Duration) (stop func()) {
	return s.run(&keeper.Controller{
		Client: s.client(), Metadata: onlyOf{s.metadata(), s.Namespace}, Store: s.store, Events: s.events, Log: quiet(), Clock: wall,
		Options: keeper.Options{After: after, Settle: 100 * time.Millisecond, Resync: time.Second, Workers: 2},
	})
}

// placed waits for the marks of the pods of a namespace: the value of the annotation by pod, those without it left out.
func (s *small) placed(what string, is func(marks map[string]string, pods []corev1.Pod) bool) []corev1.Pod {
	s.Helper()
	var pods []corev1.Pod
	s.Wait(what, func(ctx context.Context) (bool, string, error) {
		list, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		marks := map[string]string{}
		for i := range list.Items {
			if value, ok := list.Items[i].Annotations[guard.AnnotationKeeper]; ok {
				marks[list.Items[i].Name] = value
			}
		}
		pods = list.Items
		return is(marks, pods), fmt.Sprintf("marks %v of %d pods", marks, len(pods)), nil
	})
	return pods
}

// crowd makes Deployments of five pods each on two nodes, three on the first and two on the second.
func (s *small) crowd(names ...string) {
	s.Helper()
	cordon := func(node string, yes bool) { s.patchNode(node, fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, yes)) }
	cordon(s.nodes[1], true)
	for _, name := range names {
		s.Deployment(name, 3)
	}
	cordon(s.nodes[0], true)
	cordon(s.nodes[1], false)
	for _, name := range names {
		s.scale(name, 5)
	}
	for _, name := range names {
		s.PodsReady(name, 5)
	}
	cordon(s.nodes[0], false)
}

func (s *small) scale(name string, replicas int32) {
	s.Helper()
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	_, err := s.Client.AppsV1().Deployments(s.Namespace).Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// spread counts the nodes that the pods of an app are on.
func (s *small) spread(app string, n int) int {
	s.Helper()
	nodes := map[string]bool{}
	for _, p := range s.PodsReady(app, n) {
		nodes[p.Spec.NodeName] = true
	}
	return len(nodes)
}

// Five pods on two nodes, three and two, scaled to two: one stays on each node, ten times of ten. Without marks both stay on one.
func TestKeepersMakeScaleDownsKeepEveryNode(t *testing.T) {
	const rounds = 10
	s := newSmall(t, 2)
	var kept, plain []string
	for i := range rounds {
		kept, plain = append(kept, fmt.Sprintf("kept-%d", i)), append(plain, fmt.Sprintf("plain-%d", i))
	}
	s.crowd(append(slices.Clone(kept), plain...)...)
	for _, name := range kept {
		s.Service(name)
	}
	s.keepers(time.Minute)
	s.placed("a mark and a cost on each node for each Service", func(_ map[string]string, pods []corev1.Pod) bool {
		seen := map[string]int{}
		for i := range pods {
			p := &pods[i]
			if p.Annotations[guard.AnnotationKeeper] == p.Labels[controlplane.AppLabel]+"?" && p.Annotations[corev1.PodDeletionCost] == guard.KeeperCost {
				seen[p.Labels[controlplane.AppLabel]+" "+p.Spec.NodeName]++
			}
		}
		return len(seen) == 2*rounds && !slices.ContainsFunc(slices.Collect(maps.Values(seen)), func(n int) bool { return n != 1 })
	})
	for _, name := range append(slices.Clone(kept), plain...) {
		s.scale(name, 2)
	}
	both := 0
	for _, name := range kept {
		if s.spread(name, 2) != 2 {
			t.Errorf("%s: both pods stayed on one node", name)
		}
	}
	for _, name := range plain {
		if s.spread(name, 2) != 2 {
			both++
		}
	}
	t.Logf("without marks both pods stayed on one node %d times of %d", both, rounds)
	if both == 0 {
		t.Error("without marks every node was kept, too: this shows nothing")
	}
}

// A mark is written when it is needed and when it is relied on, a cost with it, and nothing else ever.
func TestKeepersAreWrittenOnChangeOnly(t *testing.T) {
	s := newSmall(t, 2)
	s.crowd("web")
	s.Service("web")
	s.EndpointsReady("web", 5)
	s.keepers(time.Second)
	relied := func(n int) func(map[string]string, []corev1.Pod) bool {
		return func(marks map[string]string, _ []corev1.Pod) bool {
			return len(marks) == n && !slices.ContainsFunc(slices.Collect(maps.Values(marks)), func(v string) bool { return v != "web" })
		}
	}
	s.placed("two marks to rely on", relied(2))
	if got := len(s.writes.all()); got != 4 {
		t.Errorf("%d writes for two marks, want two each: %v", got, s.writes.all())
	}
	at := len(s.writes.all())
	pause(3 * time.Second) // in which every pod is read three times
	if got := s.writes.all()[at:]; len(got) > 0 {
		t.Errorf("writes in a cluster at rest: %v", got)
	}
	// The keeper of the first node goes: another pod takes its place, and nothing else is written.
	pods := s.PodsReady("web", 5)
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool {
		return p.Annotations[guard.AnnotationKeeper] != "" && p.Spec.NodeName == s.nodes[0]
	})
	s.patchNode(s.nodes[0], `{"spec":{"unschedulable":true}}`)
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(t.Context(), pods[i].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.PodsReady("web", 5)
	s.placed("the next keeper", relied(2))
	pause(2 * time.Second)
	if got := s.writes.all()[at:]; len(got) != 2 {
		t.Errorf("%d writes for one mark, want two: %v", len(got), got)
	}
}

// Pods that no ReplicaSet owns are kept without a cost, and one pod keeps for several Services.
func TestKeepersOfEveryKindOfPod(t *testing.T) {
	s := newSmall(t, 1)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[0], func(p *corev1.Pod) { p.Labels["also"] = "api" })
	s.Service("web")
	s.Service("api", func(svc *corev1.Service) { svc.Spec.Selector = map[string]string{"also": "api"} })
	one := int32(2)
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &one, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{controlplane.AppLabel: "db"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{controlplane.AppLabel: "db"}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{controlplane.PoolLabel: s.Namespace},
					Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
				},
			},
		},
	}
	if _, err := s.Client.AppsV1().StatefulSets(s.Namespace).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.PodsReady("db", 2)
	s.Service("db")
	for service, ready := range map[string]int{"web": 2, "api": 1, "db": 2} {
		s.seen(service, ready)
	}
	s.keepers(time.Second)
	pods := s.placed("marks on a bare pod and on one of the set", func(marks map[string]string, _ []corev1.Pod) bool {
		db := marks["db-0"] + marks["db-1"]
		return len(marks) == 2 && marks["b"] == "web" && db == "db"
	})
	for i := range pods {
		if cost, ok := pods[i].Annotations[corev1.PodDeletionCost]; ok {
			t.Errorf("pod %s has the cost %s", pods[i].Name, cost)
		}
	}
	if n, err := keeper.Clear(t.Context(), s.Client, onlyOf{s.metadata(), s.Namespace}, false); err != nil || n != 2 {
		t.Errorf("cleared %d: %v", n, err)
	}
}

// Somebody else's costs stay, and that is said once for the Service.
func TestKeepersRespectCostsOfOthers(t *testing.T) {
	s := newSmall(t, 1)
	s.Deployment("web", 3, func(d *appsv1.Deployment) {
		d.Spec.Template.Annotations[corev1.PodDeletionCost] = "7"
	})
	s.Service("web")
	s.EndpointsReady("web", 3)
	s.keepers(time.Second)
	pods := s.placed("a mark to rely on", func(marks map[string]string, _ []corev1.Pod) bool {
		return len(marks) == 1 && slices.Contains(slices.Collect(maps.Values(marks)), "web")
	})
	for i := range pods {
		if pods[i].Annotations[corev1.PodDeletionCost] != "7" {
			t.Errorf("pod %s has the cost %q", pods[i].Name, pods[i].Annotations[corev1.PodDeletionCost])
		}
	}
	pause(2 * time.Second)
	if got := s.events.all(); len(got) != 1 || !strings.Contains(got[0], keeper.ReasonForeignCost) {
		t.Errorf("events %v", got)
	}
}

// A Service that has no policy Local any more leaves nothing behind; who runs next knows the marks of those before.
func TestKeepersGoWithTheirService(t *testing.T) {
	s := newSmall(t, 1)
	s.Deployment("web", 2)
	s.Service("web")
	s.EndpointsReady("web", 2)
	stop := s.keepers(time.Second)
	s.placed("a mark to rely on", func(marks map[string]string, _ []corev1.Pod) bool {
		return slices.Contains(slices.Collect(maps.Values(marks)), "web")
	})
	stop()
	patch := []byte(`{"spec":{"externalTrafficPolicy":"Cluster"}}`)
	if _, err := s.Client.CoreV1().Services(s.Namespace).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Wait("the Store knows", func(context.Context) (known bool, _ string, _ error) {
		s.store.Read(func(v *storeView) {
			svc, ok := v.Service(guard.Key{Namespace: s.Namespace, Name: "web"})
			known = ok && !svc.External
		})
		return known, "", nil
	})
	s.keepers(time.Second)
	pods := s.placed("no mark", func(marks map[string]string, _ []corev1.Pod) bool { return len(marks) == 0 })
	for i := range pods {
		if cost, ok := pods[i].Annotations[corev1.PodDeletionCost]; ok {
			t.Errorf("pod %s has the cost %s", pods[i].Name, cost)
		}
	}
}

// Pods that are alone on nodes that the balancer sends to stay, and those on other nodes go. Without marks it is left to chance.
func TestKeepersSpareNodesThatCount(t *testing.T) {
	const rounds = 5
	s := newSmall(t, 4)
	for _, node := range s.nodes[2:] {
		s.patchNode(node, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, lbhooks.ExcludeLabel))
	}
	var kept, plain []string
	for i := range rounds {
		kept, plain = append(kept, fmt.Sprintf("kept-%d", i)), append(plain, fmt.Sprintf("plain-%d", i))
	}
	both := append(slices.Clone(kept), plain...)
	for _, name := range both {
		s.Deployment(name, 4, spread)
	}
	for _, name := range both {
		if n := s.spread(name, 4); n != 4 {
			t.Fatalf("%s is on %d nodes", name, n)
		}
	}
	for _, name := range kept {
		s.behind(name)
	}
	s.keepers(time.Minute)
	s.placed("a mark and a cost on each node that is sent to, and on no other", func(marks map[string]string, pods []corev1.Pod) bool {
		for i := range pods {
			p := &pods[i]
			sent := slices.Contains(s.nodes[:2], p.Spec.NodeName) && slices.Contains(kept, p.Labels[controlplane.AppLabel])
			if sent != (p.Annotations[corev1.PodDeletionCost] == guard.KeeperCost) {
				return false
			}
		}
		return len(marks) == 2*rounds
	})
	for _, name := range both {
		s.scale(name, 2)
	}
	where := func(name string) (sent int) {
		for _, p := range s.PodsReady(name, 2) {
			if slices.Contains(s.nodes[:2], p.Spec.NodeName) {
				sent++
			}
		}
		return sent
	}
	for _, name := range kept {
		if n := where(name); n != 2 {
			t.Errorf("%s: %d of 2 nodes in rotation have a pod", name, n)
		}
	}
	emptied := 0
	for _, name := range plain {
		emptied += 2 - where(name)
	}
	t.Logf("without marks %d of %d nodes in rotation lost their pod", emptied, 2*rounds)
	if emptied == 0 {
		t.Error("without marks every node was kept, too: this shows nothing")
	}
}

// Pods that were there before their ReplicaSet get their costs once it has adopted them, not only their marks.
func TestKeepersOfAdoptedPods(t *testing.T) {
	s := newSmall(t, 1)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[0])
	s.Service("web")
	s.keepers(time.Minute)
	cost := func(is string) func(map[string]string, []corev1.Pod) bool {
		return func(marks map[string]string, pods []corev1.Pod) bool {
			return len(marks) == 1 && slices.ContainsFunc(pods, func(p corev1.Pod) bool {
				return marks[p.Name] == "web?" && p.Annotations[corev1.PodDeletionCost] == is
			})
		}
	}
	s.placed("a mark without a cost", cost(""))
	s.replicaSet("web", 2)
	s.placed("the cost", cost(guard.KeeperCost))
}

// replicaSet makes a ReplicaSet that adopts the pods of an app.
func (s *small) replicaSet(app string, replicas int32) {
	s.Helper()
	labels := map[string]string{controlplane.AppLabel: app}
	_, err := s.Client.AppsV1().ReplicaSets(s.Namespace).Create(s.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// The controller of a ReplicaSet without a Deployment is blind to nodes: of three pods on two nodes the one that is alone stays by
// its cost.
func TestKeepersOfReplicaSetsWithoutDeployments(t *testing.T) {
	const rounds = 5
	s := newSmall(t, 2)
	for i := range rounds {
		app := fmt.Sprintf("bare-%d", i)
		s.on(app, app+"-a", s.nodes[0])
		s.on(app, app+"-b", s.nodes[0])
		s.on(app, app+"-c", s.nodes[1])
		s.replicaSet(app, 3)
		s.behind(app)
	}
	s.keepers(time.Minute)
	s.placed("a mark and a cost on each node", func(marks map[string]string, pods []corev1.Pod) bool {
		costs := 0
		for i := range pods {
			if pods[i].Annotations[corev1.PodDeletionCost] == guard.KeeperCost {
				costs++
			}
		}
		return len(marks) == 2*rounds && costs == 2*rounds
	})
	for i := range rounds {
		_, err := s.Client.AppsV1().ReplicaSets(s.Namespace).Patch(t.Context(), fmt.Sprintf("bare-%d", i), types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range rounds {
		if app := fmt.Sprintf("bare-%d", i); s.spread(app, 2) != 2 {
			t.Errorf("%s: a node has lost its pod", app)
		}
	}
}
