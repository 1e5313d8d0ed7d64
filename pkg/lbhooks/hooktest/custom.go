package hooktest

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Custom makes an object of a custom kind, cluster-scoped; apiVersion is "group/version".
func Custom(apiVersion, kind, name string, spec, status map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	if spec != nil {
		u.Object["spec"] = spec
	}
	if status != nil {
		u.Object["status"] = status
	}
	u.SetName(name)
	return u
}

// Apply creates a cluster-scoped object or brings its status up to date. A server with a status subresource drops the
// status of a creation, one without refuses the update of the subresource: so the status is written both ways.
func Apply(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource, want *unstructured.Unstructured) error {
	resource := client.Resource(gvr)
	have, err := resource.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		have, err = resource.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	status, ok := want.Object["status"]
	if !ok {
		return nil
	}
	have.Object["status"] = status
	if _, err = resource.UpdateStatus(ctx, have, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = resource.Update(ctx, have, metav1.UpdateOptions{})
	}
	return err
}

// FaultyLists is a dynamic client whose LISTs across the cluster fail as told.
type FaultyLists struct {
	dynamic.Interface

	mu    sync.Mutex
	fault Fault
}

// NewFaultyLists returns a client without a fault.
func NewFaultyLists(client dynamic.Interface) *FaultyLists { return &FaultyLists{Interface: client} }

// Set makes LISTs fail, or work again.
func (f *FaultyLists) Set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Resource returns a client of one resource that fails as told.
func (f *FaultyLists) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return faultyLists{NamespaceableResourceInterface: f.Interface.Resource(r), owner: f, gvr: r}
}

type faultyLists struct {
	dynamic.NamespaceableResourceInterface

	owner *FaultyLists
	gvr   schema.GroupVersionResource
}

// List answers as an API server does in that case.
func (r faultyLists) List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	r.owner.mu.Lock()
	fault := r.owner.fault
	r.owner.mu.Unlock()
	switch fault {
	case Healthy:
	case Flaky:
		return nil, apierrors.NewServiceUnavailable("the API server is restarting")
	case Forbidden:
		return nil, apierrors.NewForbidden(r.gvr.GroupResource(), "", nil)
	case NotServed:
		return nil, apierrors.NewNotFound(r.gvr.GroupResource(), "")
	case Slow:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.NamespaceableResourceInterface.List(ctx, opts)
}
