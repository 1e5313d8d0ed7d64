package admission

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Workloads reads live what [guard.JudgeScale] needs of a workload but its Services.
type Workloads interface {
	// Target reads a workload that is named by its resource. selector is that of its scale, for kinds that are not Kubernetes'
	// own. It returns a *cluster.NoWorkload when there is none.
	Target(ctx context.Context, resource schema.GroupResource, key guard.Key, selector string) (*guard.ScaleTarget, error)
}

// LiveWorkloads reads from the API server itself, without a cache.
type LiveWorkloads struct{ Client kubernetes.Interface }

var _ Workloads = LiveWorkloads{}

// kinds are those whose controllers are known, by their resource.
var kinds = map[schema.GroupResource]string{
	{Group: appsv1.GroupName, Resource: "deployments"}:  cluster.KindDeployment,
	{Group: appsv1.GroupName, Resource: "replicasets"}:  cluster.KindReplicaSet,
	{Group: appsv1.GroupName, Resource: "statefulsets"}: cluster.KindStatefulSet,
}

// Target reads a workload with its pods. Of a kind that is not known only the scale is: its pods are those that the scale
// selects, and one of them tells what its template is.
func (l LiveWorkloads) Target(ctx context.Context, resource schema.GroupResource, key guard.Key, text string) (*guard.ScaleTarget, error) {
	if kind, ok := kinds[resource]; ok {
		return cluster.ReadScaleTarget(ctx, l.Client, kind, key)
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("status.selector of the scale of %s %s: %w", resource, key, err)
	}
	t := &guard.ScaleTarget{Kind: resource.Resource, Key: key, Selector: selector}
	if selector.Empty() {
		return t, nil
	}
	if t.Pods, err = cluster.PodsBy(ctx, l.Client, key.Namespace, selector); err != nil {
		return nil, fmt.Errorf("read the pods of %s %s: %w", resource, key, err)
	}
	if len(t.Pods) > 0 {
		p := t.Pods[0]
		t.Template = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
	}
	return t, nil
}

// scaled is what a review about replicas says of the object: the same few fields of a Scale and of a workload.
type scaled struct {
	Metadata struct {
		UID             types.UID               `json:"uid"` // a Scale has the one of its workload
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		Replicas *int32                  `json:"replicas"`
		Template *corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
	Status struct {
		Selector any `json:"selector"` // text in a Scale
	} `json:"status"`
}

func decodeScaled(raw []byte) (*scaled, error) {
	s := &scaled{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, err
	}
	return s, nil
}

// replicas are those of the spec; absent means means.
func (s *scaled) replicas(absent int32) int32 {
	if s.Spec.Replicas == nil {
		return absent
	}
	return *s.Spec.Replicas
}

func (s *scaled) controlled() bool {
	for _, o := range s.Metadata.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return true
		}
	}
	return false
}

func (s *scaled) selector() string {
	text, _ := s.Status.Selector.(string)
	return text
}
