package e2e

import (
	"context"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

var (
	scaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}
	crds          = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// scaledObjectDefinition has, of KEDA's own schema, what says how many replicas there are to be, with its types and what is
// required. All else is pruned, as the API server does.
//
// Source: config/crd/bases/keda.sh_scaledobjects.yaml in github.com/kedacore/keda.
func scaledObjectDefinition() *unstructured.Unstructured {
	object := func(required []any, properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "required": required, "properties": properties}
	}
	text, number := map[string]any{"type": "string"}, map[string]any{"type": "integer", "format": "int32"}
	trigger := object([]any{"metadata", "type"}, map[string]any{
		"type": text, "metadata": map[string]any{"type": "object", "additionalProperties": text},
	})
	spec := object([]any{"scaleTargetRef", "triggers"}, map[string]any{
		"scaleTargetRef":  object([]any{"name"}, map[string]any{"apiVersion": text, "kind": text, "name": text}),
		"minReplicaCount": number, "maxReplicaCount": number,
		"triggers": map[string]any{"type": "array", "items": trigger},
	})
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "scaledobjects.keda.sh"},
		"spec": map[string]any{
			"group": "keda.sh", "scope": "Namespaced",
			"names": map[string]any{"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject", "listKind": "ScaledObjectList"},
			"versions": []any{map[string]any{
				"name": "v1alpha1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": object([]any{"spec"}, map[string]any{"spec": spec})},
			}},
		},
	}}
}

// scaledObject makes a ScaledObject of the Deployment, and the autoscaler that KEDA makes of it.
func (s *soloShop) scaledObject() *unstructured.Unstructured {
	s.Helper()
	if _, err := s.dynamic.Resource(crds).Create(s.Context(), scaledObjectDefinition(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
	made := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{
			"scaleTargetRef": map[string]any{"name": "web"}, "maxReplicaCount": int64(4),
			"triggers": []any{map[string]any{"type": "cpu", "metadata": map[string]any{"value": "50"}}},
		},
	}}
	s.Wait("a ScaledObject", func(ctx context.Context) (bool, string, error) {
		got, failed := s.dynamic.Resource(scaledObjects).Namespace(s.Namespace).Create(ctx, made, metav1.CreateOptions{})
		if failed == nil {
			made = got
		}
		return failed == nil, "not served yet", nil
	})
	_, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace).Create(s.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "keda-hpa-web", OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(made, scaledObjects.GroupVersion().WithKind("ScaledObject")),
		}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    ptr.To[int32](1), MaxReplicas: 4,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.asKEDA()
	return made
}

// asKEDA does in KEDA's place what it does with that autoscaler: it writes the least and the labels of the ScaledObject to it
// when they differ, and leaves labels there that the ScaledObject has no more.
//
// Source: newHPAForScaledObject and updateHPAIfNeeded in github.com/kedacore/keda/controllers/keda/hpa.go.
func (s *soloShop) asKEDA() {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			from, err := s.dynamic.Resource(scaledObjects).Namespace(s.Namespace).Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return false, ctx.Err()
			}
			h, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace).Get(ctx, "keda-hpa-web", metav1.GetOptions{})
			if err != nil {
				return false, ctx.Err()
			}
			least, given, _ := unstructured.NestedInt64(from.Object, "spec", "minReplicaCount")
			if !given || least < 1 {
				least = 1
			}
			same := int64(*h.Spec.MinReplicas) == least
			for key, value := range from.GetLabels() {
				same = same && h.Labels[key] == value
			}
			if !same {
				h.Spec.MinReplicas, h.Labels = ptr.To(int32(least)), from.GetLabels()
				_, _ = s.Client.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace).Update(ctx, h, metav1.UpdateOptions{}) // the next look tries again
			}
			return false, nil
		})
	}()
	s.Cleanup(func() { cancel(); <-done })
}
