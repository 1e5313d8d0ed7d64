package gate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/test/controlplane"
)

// TestScaleStatefulSet: the floor holds for a StatefulSet, and so do the nodes of its highest ordinals: its controller takes
// those, wherever they are.
func TestScaleStatefulSet(t *testing.T) {
	for policy, want := range map[string]struct {
		stored int32  // when one is asked for
		says   string // on stderr
	}{
		"clamp": {2, "Warning: safedrain kept 2 replicas, asked for 1"},
		"deny":  {4, "needs 2: 2 nodes send for Service"},
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := newScaled(t, policy, 2)
			s.statefulSet("db", 0, 1, 0, 1)
			s.asksFor("statefulset/db", 1, want.stored, want.says)
			s.PodsReady("db", int(want.stored))
			if have := on(s.Env, "db"); len(have) != 2 {
				t.Errorf("pods on %v", have)
			}
		})
	}
	t.Run("the highest ordinal is alone on its node", func(t *testing.T) {
		t.Parallel()
		s := newScaled(t, "clamp", 2)
		s.statefulSet("db", 0, 0, 1)
		s.asksFor("statefulset/db", 2, 3, "in rotation; it takes its highest ordinals, wherever they are")
	})
}

// TestScaleOfAnotherKind: whatever has a scale is held to the floor, also where nobody knows its controller.
func TestScaleOfAnotherKind(t *testing.T) {
	for policy, want := range map[string]struct {
		stored int32
		says   string
	}{
		"clamp": {3, "Warning: safedrain kept 3 replicas, asked for 1"},
		"deny":  {6, "needs 3: 3 nodes send for Service"},
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := newScaled(t, policy, 3)
			s.Service("web")
			for i := range 6 {
				s.Pod(fmt.Sprintf("web-%d", i), s.nodes[i%3], labelled("web"))
			}
			s.EndpointsReady("web", 6)
			s.gate.judges(s.Env)
			s.set("web", 6)
			s.asksFor("sets.test.safedrain.dev/web", 1, want.stored, want.says)
		})
	}
}

// scaled is a namespace with nodes whose scale-downs the gate of a policy judges.
type scaled struct {
	*controlplane.Env
	gate  *gated
	nodes []string
}

func newScaled(t *testing.T, policy string, nodes int) *scaled {
	t.Helper()
	g := oneGate(t, "gate-"+policy, 1, "--mode=enforce", "--scale="+policy)
	s := &scaled{Env: g.cluster.Env(t), gate: g}
	s.nodes = s.Nodes(nodes, longReady)
	return s
}

// asksFor scales by kubectl, as a dry run until the gate, which may not know everything yet, says what it is to say, and
// compares what is stored then.
func (s *scaled) asksFor(what string, replicas, stored int32, says string) {
	s.Helper()
	kubectl := program(s.gate.cluster, s.TB)
	for _, flags := range [][]string{{"--dry-run=server"}, nil} {
		s.Wait(fmt.Sprintf("%s scaled to %d %v", what, replicas, flags), func(context.Context) (bool, string, error) {
			_, stderr, _ := kubectl(append([]string{"-n", s.Namespace, "scale", what, fmt.Sprintf("--replicas=%d", replicas)}, flags...)...)
			return strings.Contains(stderr, says), stderr, nil
		})
	}
	stdout, stderr, _ := kubectl("-n", s.Namespace, "get", what, "-o", "jsonpath={.spec.replicas}")
	if stdout != fmt.Sprint(stored) {
		s.Errorf("%s replicas of %s are stored, want %d: %s", stdout, what, stored, stderr)
	}
}

// statefulSet makes a StatefulSet behind a Service, whose ordinals stand on these nodes.
func (s *scaled) statefulSet(name string, on ...int) {
	s.Helper()
	none := int32(0)
	labels := map[string]string{controlplane.AppLabel: name}
	sets := s.Client.AppsV1().StatefulSets(s.Namespace)
	_, err := sets.Create(s.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &none, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{controlplane.PoolLabel: s.Namespace},
					Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.Service(name)
	for i, node := range on {
		for k := range s.nodes {
			s.patchNode(s.nodes[k], fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, k != node))
		}
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, i+1)
		if _, err := sets.Patch(s.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			s.Fatal(err)
		}
		s.PodsReady(name, i+1)
	}
	for k := range s.nodes {
		s.patchNode(s.nodes[k], `{"spec":{"unschedulable":false}}`)
	}
	s.EndpointsReady(name, len(on))
	s.gate.judges(s.Env)
}

func (s *scaled) patchNode(name, patch string) {
	s.Helper()
	if _, err := s.Client.CoreV1().Nodes().Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

var (
	sets       = schema.GroupVersionResource{Group: "test.safedrain.dev", Version: "v1", Resource: "sets"}
	setsServed sync.Once
)

// set makes an object of a kind of its own that has a scale, and no controller.
func (s *scaled) set(app string, replicas int64) {
	s.Helper()
	client, err := dynamic.NewForConfig(s.gate.cluster.Config())
	if err != nil {
		s.Fatal(err)
	}
	setsServed.Do(func() {
		if _, err := client.Resource(definitions).Create(s.Context(), setDefinition(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			s.Fatal(err)
		}
	})
	s.Wait("the kind is served", func(ctx context.Context) (bool, string, error) {
		in := client.Resource(sets).Namespace(s.Namespace)
		made, err := in.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": sets.GroupVersion().String(), "kind": "Set", "metadata": map[string]any{"name": app},
			"spec": map[string]any{"replicas": replicas},
		}}, metav1.CreateOptions{})
		if err != nil {
			return false, "", err
		}
		made.Object["status"] = map[string]any{"replicas": replicas, "selector": controlplane.AppLabel + "=" + app}
		_, err = in.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err == nil, "", err
	})
}

func setDefinition() *unstructured.Unstructured {
	number, text := map[string]any{"type": "integer"}, map[string]any{"type": "string"}
	object := func(properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "properties": properties}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "sets.test.safedrain.dev"},
		"spec": map[string]any{
			"group": sets.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "sets", "singular": "set", "kind": "Set", "listKind": "SetList"},
			"versions": []any{map[string]any{
				"name": sets.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": object(map[string]any{
					"spec":   object(map[string]any{"replicas": number}),
					"status": object(map[string]any{"replicas": number, "selector": text}),
				})},
				"subresources": map[string]any{
					"status": map[string]any{},
					"scale": map[string]any{
						"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
					},
				},
			}},
		},
	}}
}
