package guard

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// readyAt lets a pod have been Ready for a time.
func readyAt(p *corev1.Pod, age time.Duration) {
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(scaleNow.Add(-age))
}

// TestRank: each rule of the ReplicaSet controller by itself, and why it says a pod goes. web0 goes, or both may.
func TestRank(t *testing.T) {
	for name, test := range map[string]struct {
		change func(pods []*corev1.Pod)
		want   string
		why    string
	}{
		"alike":         {func([]*corev1.Pod) {}, "web0? web1?", "1 of 2 that are alike"},
		"not on a node": {func(p []*corev1.Pod) { p[0].Spec.NodeName = "" }, "web0", "not on a node yet"},
		"pending":       {func(p []*corev1.Pod) { p[0].Status.Phase = corev1.PodPending }, "web0", "phase Pending"},
		"unknown":       {func(p []*corev1.Pod) { p[0].Status.Phase = corev1.PodUnknown }, "web0", "phase Unknown"},
		"not Ready":     {func(p []*corev1.Pod) { p[0].Status.Conditions[0].Status = corev1.ConditionUnknown }, "web0", "not Ready"},
		"a lower cost":  {func(p []*corev1.Pod) { p[1].Annotations[corev1.PodDeletionCost] = "7" }, "web0", "deletion cost 0"},
		"no cost":       {func(p []*corev1.Pod) { p[1].Annotations[corev1.PodDeletionCost] = "+7" }, "web0? web1?", "alike"},
		"Ready later":   {func(p []*corev1.Pod) { readyAt(p[0], time.Hour) }, "web0", "Ready for a shorter time"},
		"about as long": {func(p []*corev1.Pod) { readyAt(p[0], 99*time.Hour) }, "web0", "its UID, among pods Ready for about as long"},
		"nobody knows":  {func(p []*corev1.Pod) { p[0].Status.Conditions[0].LastTransitionTime = metav1.Time{} }, "web0", "Ready for a shorter time"},
		"restarted":     {func(p []*corev1.Pod) { restarted(p[0], 3); restarted(p[1], 2) }, "web0", "restarted more often"},
		"created later": {func(p []*corev1.Pod) { p[0].CreationTimestamp = metav1.NewTime(scaleNow.Add(-time.Hour)) }, "web0", "created later"},
		"a bucket about to end, and the UID says the same": {
			func(p []*corev1.Pod) { readyAt(p[0], 1<<42-5*time.Second); readyAt(p[1], 1<<42+20*time.Second) }, "web0", "Ready for a shorter time",
		},
		"a bucket about to end, and the UID says otherwise": {
			func(p []*corev1.Pod) { readyAt(p[1], 1<<42-5*time.Second); readyAt(p[0], 1<<42+20*time.Second) }, "web0? web1?", "which time may change",
		},
		"a bucket that ends later": {
			func(p []*corev1.Pod) { readyAt(p[1], 1<<42-15*time.Second); readyAt(p[0], 1<<42+20*time.Second) }, "web1", "Ready for a shorter time",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := deployment([]string{"n1", "n2"}, "n1", "n2")
			test.change(s.target.Pods)
			p := JudgeScale(s.target, s, 1, scaleNow)
			if got := going(&p); got != test.want || !strings.Contains(p.Victims[0].Why, test.why) {
				t.Errorf("%s (%s), want %s (%s)", got, p.Victims[0].Why, test.want, test.why)
			}
		})
	}
}

func restarted(p *corev1.Pod, n int32) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: n}}
}

// TestCircle: web0 goes before web1 and web1 before web2 by their UIDs, and web2 before web0, Ready at the same time, for it was
// restarted: any of them may go.
func TestCircle(t *testing.T) {
	s := deployment([]string{"n1", "n2", "n3", "n4"}, "n1", "n2", "n3", "n4:+")
	readyAt(s.target.Pods[1], 99*time.Hour)
	restarted(s.target.Pods[2], 1)
	p := JudgeScale(s.target, s, 3, scaleNow)
	if got, want := going(&p), "web0? web1? web2?"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestRankByNode: the pods of a node count over all ReplicaSets of a controller, terminating ones do not, and a ReplicaSet of
// its own does not look at nodes.
func TestRankByNode(t *testing.T) {
	build := func() *scaled {
		s := deployment([]string{"n1", "n2"}, "n1", "n2")
		old := replicaSet("old", 1, ownedBy("Deployment", "web", "d"))
		s.target.ReplicaSets = append(s.target.ReplicaSets, old)
		s.target.Pods = append(s.target.Pods, webPod("old0", "n1", "", old))
		s.target.Kind, s.target.Deployment = "ReplicaSet", nil
		return s
	}
	s := build()
	if p := JudgeScale(s.target, s, 1, scaleNow); going(&p) != "web0" || p.Victims[0].Why != "2 pods on its node" {
		t.Errorf("with a sibling's pod on n1: %s (%s)", going(&p), p.Victims[0].Why)
	}
	s = build()
	s.target.Pods[2].DeletionTimestamp = &longAgo
	if p := JudgeScale(s.target, s, 1, scaleNow); going(&p) != "web0? web1?" {
		t.Errorf("which terminates: %s", going(&p))
	}
	s = build()
	s.target.ReplicaSets[0].OwnerReferences = nil
	if p := JudgeScale(s.target, s, 1, scaleNow); going(&p) != "web0? web1?" {
		t.Errorf("of its own: %s", going(&p))
	}
}

// TestCandidates: what the controller counts as its pods.
func TestCandidates(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		counts bool
	}{
		"as it is":        {func(*corev1.Pod) {}, true},
		"an orphan":       {func(p *corev1.Pod) { p.OwnerReferences = nil }, true},
		"of another":      {func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }, false},
		"labels changed":  {func(p *corev1.Pod) { p.Labels = map[string]string{"app": "held"} }, false},
		"terminating":     {func(p *corev1.Pod) { p.DeletionTimestamp = &longAgo }, false},
		"failed":          {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"succeeded":       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"other namespace": {func(p *corev1.Pod) { p.Namespace = "b" }, false},
	} {
		s := deployment([]string{"n1", "n2"}, "n1", "n2")
		test.change(s.target.Pods[1])
		if got := len(s.target.candidates()) == 2; got != test.counts {
			t.Errorf("%s: counts %t, want %t", name, got, test.counts)
		}
	}
}

// TestBurst: the controller deletes 500 and ranks anew.
func TestBurst(t *testing.T) {
	var pods []string
	for range 700 {
		pods = append(pods, "n1:-")
	}
	for range 300 {
		pods = append(pods, "n2:+")
	}
	s := deployment([]string{"n1", "n2"}, pods...)
	for i, p := range s.target.Pods {
		readyAt(p, 100*time.Hour-time.Duration(i)*time.Second)
	}
	p := JudgeScale(s.target, s, 300, scaleNow)
	if len(p.Victims) != 700 || p.Victims[699].Goes != Will || p.Workload.Pods != (Count{1000, 300}) {
		t.Errorf("%d victims, the last %+v, %+v", len(p.Victims), p.Victims[len(p.Victims)-1], p.Workload.Pods)
	}
	if p = JudgeScale(s.target, s, 0, scaleNow); len(p.Victims) != 1000 || p.Victims[0].Goes != Will {
		t.Errorf("to nothing: %d victims", len(p.Victims))
	}
	for _, p := range s.target.Pods {
		readyAt(p, 100*time.Hour)
	}
	if p = JudgeScale(s.target, s, 400, scaleNow); len(p.Victims) < 700 || p.Victims[0].Goes != May || p.Workload.Pods.After != 400 {
		t.Errorf("600 of 700 that are alike: %d victims, %+v", len(p.Victims), p.Workload.Pods)
	}
}

// TestStatefulSet: ordinals out of range go, the highest first.
func TestStatefulSet(t *testing.T) {
	for name, test := range map[string]struct {
		start int32
		pods  []string
		after int32
		want  string
	}{
		"the highest":     {0, []string{"db-0", "db-1", "db-2"}, 1, "db-2 db-1"},
		"ten is high":     {0, []string{"db-2", "db-10", "db-9"}, 3, "db-10 db-9"},
		"a start":         {5, []string{"db-5", "db-6", "db-7"}, 2, "db-7"},
		"below a start":   {1, []string{"db-0", "db-1", "db-2"}, 2, "db-0"},
		"a hole":          {0, []string{"db-0", "db-2"}, 1, "db-2"},
		"none left":       {0, []string{"db-0", "db-1"}, 0, "db-1 db-0"},
		"not its pods":    {0, []string{"db-0", "db-x", "other-3", "db-1-3"}, 0, "db-0"},
		"nothing to lose": {0, []string{"db-0"}, 2, ""},
	} {
		s := &ScaleTarget{Kind: "StatefulSet", Key: Key{"a", "db"}, Replicas: 20, StatefulSet: &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "db", UID: "db"},
			Spec:       appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{}, Ordinals: &appsv1.StatefulSetOrdinals{Start: test.start}},
		}}
		for _, name := range test.pods {
			p := webPod(name, "n1", "", replicaSet("x", 0, nil))
			p.OwnerReferences = ownedBy("StatefulSet", "db", "db")
			s.Pods = append(s.Pods, p)
		}
		p := JudgeScale(s, newWorld("n1"), test.after, scaleNow)
		if got := going(&p); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestStatefulSetEmpties: a StatefulSet is blind to nodes, and no cost helps.
func TestStatefulSetEmpties(t *testing.T) {
	s := deployment([]string{"n1", "n2"}, "n1", "n1", "n2")
	for i, p := range s.target.Pods {
		p.Name, p.OwnerReferences = "web-"+string(rune('0'+i)), ownedBy("StatefulSet", "web", "s")
	}
	s.target.Kind, s.target.Deployment, s.target.ReplicaSets = "StatefulSet", nil, nil
	s.target.StatefulSet = &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "s"}, Spec: appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{}}}
	p := s.judge(nil, 2)
	f := p.Finding(ScaleEmptiesNode)
	if f == nil || f.Severity != Block || !strings.Contains(f.Advice, "highest ordinals") {
		t.Errorf("%s: %+v", told(&p), f)
	}
}

// TestShares: a rollout shares what is left; the rest of the controller's choices is compared with its own code in test/.
func TestShares(t *testing.T) {
	set := func(name string, replicas int32, most string) *appsv1.ReplicaSet {
		s := replicaSet(name, replicas, ownedBy("Deployment", "web", "d"))
		s.Annotations = map[string]string{annotationMaxReplicas: most}
		return s
	}
	rolling, recreate := appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}, appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	for name, test := range map[string]struct {
		strategy appsv1.DeploymentStrategy
		sets     []*appsv1.ReplicaSet
		after    int32
		want     map[types.UID]int32
	}{
		"one":            {rolling, []*appsv1.ReplicaSet{set("a", 5, "7")}, 2, map[types.UID]int32{"a": 2}},
		"one, old empty": {rolling, []*appsv1.ReplicaSet{set("a", 5, "7"), set("b", 0, "7")}, 2, map[types.UID]int32{"a": 2, "b": 0}},
		"two":            {rolling, []*appsv1.ReplicaSet{set("a", 8, "13"), set("b", 5, "13")}, 5, map[types.UID]int32{"a": 4, "b": 3}},
		"to nothing":     {rolling, []*appsv1.ReplicaSet{set("a", 8, "13"), set("b", 5, "13")}, 0, map[types.UID]int32{"a": 0, "b": 0}},
		"within surge":   {rolling, []*appsv1.ReplicaSet{set("a", 8, "13"), set("b", 3, "13")}, 9, map[types.UID]int32{"a": 9, "b": 3}},
		"recreate":       {recreate, []*appsv1.ReplicaSet{set("a", 8, "13"), set("b", 5, "13")}, 5, nil},
		"no annotation":  {rolling, []*appsv1.ReplicaSet{set("a", 6, ""), set("b", 4, "x")}, 4, map[types.UID]int32{"a": 3, "b": 2}},
	} {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Strategy: test.strategy}, Status: appsv1.DeploymentStatus{Replicas: 10}}
		got := shares(d, test.sets, test.after)
		if len(got) != len(test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
		for uid, n := range test.want {
			if got[uid] != n {
				t.Errorf("%s: %v, want %v", name, got, test.want)
			}
		}
	}
}

// TestRollout: with two ReplicaSets that have pods each loses its share, and the plan says that more will happen.
func TestRollout(t *testing.T) {
	s := deployment([]string{"n1", "n2"}, "n1", "n1", "n2", "n2")
	old := replicaSet("old", 2, ownedBy("Deployment", "web", "d"))
	old.Annotations = map[string]string{annotationMaxReplicas: "6"}
	s.target.ReplicaSets[0].Annotations = old.Annotations
	s.target.ReplicaSets = append(s.target.ReplicaSets, old)
	s.target.Pods = append(s.target.Pods, webPod("old0", "n1", "", old), webPod("old1", "n2", "", old))
	s.target.Replicas = 5
	p := JudgeScale(s.target, s, 2, scaleNow)
	if p.Finding(RolloutInProgress) == nil || p.Workload.Pods != (Count{6, 3}) {
		t.Errorf("%s, pods %+v", told(&p), p.Workload.Pods)
	}
}
