package cluster_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/safedrain/safedrain/internal/casetest"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

// TestScaleCases judges the cases that ask for a scaling, with the real hooks and rules and without the command.
func TestScaleCases(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("..", "..", "testdata", "cases", "*"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, dir := range dirs {
		c, err := casetest.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(c.Needs, "scale") {
			continue
		}
		ran++
		t.Run(filepath.Base(dir), func(t *testing.T) {
			casetest.Run(t, dir, func(args []string) ([]byte, int) {
				if i := slices.Index(args, "--scale"); i >= 0 {
					return judgeScale(t, args[i+1], filepath.Join(dir, "cluster.yaml"))
				}
				return plan(t, args)
			}, "scale")
		})
	}
	if ran < 7 {
		t.Errorf("only %d cases", ran)
	}
}

func judgeScale(t *testing.T, asked, file string) ([]byte, int) {
	t.Helper()
	s, err := cluster.Read(t.Context(), []string{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	name, number, _ := strings.Cut(strings.TrimPrefix(asked, "deploy/"), "=")
	replicas, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	target, err := s.ScaleTarget(cluster.KindDeployment, guard.Key{Namespace: "default", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	ix := s.Index(hookset.New(hookset.Deps{}), nil)
	target.Services = target.Behind(ix.Services())
	answer := guard.JudgeScale(target, ix, int32(replicas), time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC))
	out, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Refused() {
		return out, 3
	}
	return out, 0
}

func controlledBy(kind, name string, uid types.UID) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid, Controller: &yes}}
}

// scaleObjects are a Deployment with two ReplicaSets, one of somebody else, a ReplicaSet of its own, a StatefulSet, their pods
// and autoscalers.
func scaleObjects() []runtime.Object {
	meta := func(name string, owner ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name), OwnerReferences: owner, Labels: map[string]string{"app": "web"}}
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	pod := func(name string, owner ...metav1.OwnerReference) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(name, owner...), Spec: corev1.PodSpec{NodeName: "n1"}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: 3, Image: "i"}, {Name: "d"}}
		return p
	}
	autoscaler := func(name, version, kind, of string) *autoscalingv2.HorizontalPodAutoscaler {
		return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta(name), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: version, Kind: kind, Name: of}, MaxReplicas: 4,
		}}
	}
	two := int32(2)
	other := pod("other")
	other.Labels = map[string]string{"app": "db"}
	return []runtime.Object{
		&appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: &two, Selector: selector}},
		&appsv1.ReplicaSet{ObjectMeta: meta("web-2", controlledBy("Deployment", "web", "web")...), Spec: appsv1.ReplicaSetSpec{Replicas: &two, Selector: selector}},
		&appsv1.ReplicaSet{ObjectMeta: meta("web-1", controlledBy("Deployment", "web", "web")...), Spec: appsv1.ReplicaSetSpec{Replicas: &two, Selector: selector}},
		&appsv1.ReplicaSet{ObjectMeta: meta("alien", controlledBy("Deployment", "x", "x")...), Spec: appsv1.ReplicaSetSpec{Selector: selector}},
		&appsv1.ReplicaSet{ObjectMeta: meta("bare"), Spec: appsv1.ReplicaSetSpec{Selector: selector}},
		&appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}},
		pod("p1", controlledBy("ReplicaSet", "web-1", "web-1")...), pod("p2", controlledBy("ReplicaSet", "web-2", "web-2")...), other,
		autoscaler("mine", "apps/v1", "Deployment", "web"), autoscaler("old", "extensions/v1beta1", "Deployment", "web"), autoscaler("not", "apps/v1", "StatefulSet", "web"),
	}
}

// shape is what a target is made of.
type shape struct {
	Kind, Name  string
	Replicas    int32
	Sets, Pods  []string
	Autoscalers []guard.Autoscaler
	Restarts    int32
}

func shapeOf(t *guard.ScaleTarget) shape {
	s := shape{Kind: t.Kind, Name: t.Key.Name, Replicas: t.Replicas, Autoscalers: t.Autoscalers}
	for _, r := range t.ReplicaSets {
		s.Sets = append(s.Sets, r.Name)
	}
	for _, p := range t.Pods {
		s.Pods = append(s.Pods, p.Name)
		for _, c := range p.Status.ContainerStatuses {
			s.Restarts = max(s.Restarts, c.RestartCount)
		}
	}
	return s
}

// TestScaleTarget reads the same workloads live and out of files.
func TestScaleTarget(t *testing.T) {
	var items []json.RawMessage
	for _, o := range scaleObjects() {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		kind := typeName(o)
		version := map[string]string{"Pod": "v1", "HorizontalPodAutoscaler": "autoscaling/v2"}[kind]
		if version == "" {
			version = "apps/v1"
		}
		items = append(items, []byte(`{"apiVersion":"`+version+`","kind":"`+kind+`",`+string(raw[1:])))
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	files, err := cluster.Read(t.Context(), []string{"-"}, strings.NewReader(string(list)))
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(scaleObjects()...)
	all, mine := []string{"other", "p1", "p2"}, []guard.Autoscaler{{Key: guard.Key{Namespace: "a", Name: "mine"}, Min: 1, Max: 4}}
	for _, test := range []struct {
		kind, name  string
		live, files shape
	}{
		{
			"Deployment", "web",
			shape{Replicas: 2, Sets: []string{"web-1", "web-2"}, Pods: []string{"p1", "p2"}, Autoscalers: mine, Restarts: 3},
			shape{Replicas: 2, Sets: []string{"web-1", "web-2"}, Pods: all, Autoscalers: mine, Restarts: 3},
		},
		{
			"ReplicaSet", "web-2",
			shape{Replicas: 2, Sets: []string{"web-2", "web-1"}, Pods: all, Restarts: 3},
			shape{Replicas: 2, Sets: []string{"web-2", "web-1"}, Pods: all, Restarts: 3},
		},
		{"ReplicaSet", "bare", shape{Replicas: 1, Sets: []string{"bare"}, Pods: []string{"p1", "p2"}, Restarts: 3}, shape{Replicas: 1, Sets: []string{"bare"}, Pods: all, Restarts: 3}},
		{"StatefulSet", "db", shape{Replicas: 2, Pods: []string{"other"}, Restarts: 3}, shape{Replicas: 2, Pods: all, Restarts: 3}},
	} {
		key := guard.Key{Namespace: "a", Name: test.name}
		test.live.Kind, test.live.Name, test.files.Kind, test.files.Name = test.kind, test.name, test.kind, test.name
		live, err := cluster.ReadScaleTarget(t.Context(), client, test.kind, key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.live, shapeOf(live)); diff != "" {
			t.Errorf("%s live: %s", test.name, diff)
		}
		read, err := files.ScaleTarget(test.kind, key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.files, shapeOf(read)); diff != "" {
			t.Errorf("%s from files: %s", test.name, diff)
		}
	}
	for _, key := range []guard.Key{{Namespace: "a", Name: "none"}, {Namespace: "b", Name: "web"}} {
		var missing *cluster.NoWorkload
		if _, err := files.ScaleTarget("Deployment", key); !errors.As(err, &missing) || (key.Namespace == "b") != (len(missing.Elsewhere) == 1) {
			t.Errorf("from files, %s: %v", key, err)
		}
		if _, err := cluster.ReadScaleTarget(t.Context(), client, "Deployment", key); !errors.As(err, &missing) {
			t.Errorf("live, %s: %v", key, err)
		}
	}
}

// typeName is the kind of a typed object.
func typeName(o runtime.Object) string { return reflect.TypeOf(o).Elem().Name() }

func TestScaleTargetIncomplete(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"no ReplicaSet": {
			"{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: a, name: web, uid: d}, spec: {replicas: 2, selector: {matchLabels: {a: b}}}}",
			"no ReplicaSet of deployment a/web",
		},
		"no uid": {
			"{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: a, name: web}, spec: {replicas: 0, selector: {matchLabels: {a: b}}}}\n---\n" +
				"{apiVersion: v1, kind: Pod, metadata: {namespace: a, name: p}}",
			"no metadata.uid",
		},
	} {
		s, err := cluster.Read(t.Context(), []string{"-"}, strings.NewReader(test.text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.ScaleTarget("Deployment", guard.Key{Namespace: "a", Name: "web"}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestAutoscalerVersions: what is read of an autoscaler is the same in all versions.
func TestAutoscalerVersions(t *testing.T) {
	for _, version := range []string{"v1", "v2", "v2beta2"} {
		text := "{apiVersion: apps/v1, kind: StatefulSet, metadata: {namespace: a, name: db, uid: d}, spec: {selector: {matchLabels: {a: b}}}}\n---\n" +
			"{apiVersion: autoscaling/" + version + ", kind: HorizontalPodAutoscaler, metadata: {namespace: a, name: h}, spec: {scaleTargetRef: " +
			"{apiVersion: apps/v1, kind: StatefulSet, name: db}, minReplicas: 2, maxReplicas: 7, targetCPUUtilizationPercentage: 80}, status: {currentCPUUtilizationPercentage: 4, currentReplicas: 1, desiredReplicas: 1}}"
		s, err := cluster.Read(t.Context(), []string{"-"}, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		target, err := s.ScaleTarget("StatefulSet", guard.Key{Namespace: "a", Name: "db"})
		if err != nil || len(target.Autoscalers) != 1 || target.Autoscalers[0].Min != 2 || target.Autoscalers[0].Max != 7 {
			t.Errorf("%s: %v %+v", version, err, target)
		}
	}
}
