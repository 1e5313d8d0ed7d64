package metallbtest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// apply creates an object or brings its status up to date. A server with a status subresource drops the status of a
// creation, one without refuses the update of the subresource: so the status is written both ways.
func (b *Balancer) apply(ctx context.Context, kind schema.GroupVersionResource, want *unstructured.Unstructured) error {
	var client dynamic.ResourceInterface = b.config.Dynamic.Resource(kind)
	if want.GetNamespace() != "" {
		client = b.config.Dynamic.Resource(kind).Namespace(want.GetNamespace())
	}
	have, err := client.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		have, err = client.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	status, ok := want.Object["status"]
	if !ok {
		return nil
	}
	have.Object["status"] = status
	if _, err = client.UpdateStatus(ctx, have, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	return err
}
