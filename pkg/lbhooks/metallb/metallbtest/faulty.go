package metallbtest

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// Faulty is a dynamic client whose LISTs and GETs fail as told.
type Faulty struct {
	dynamic.Interface

	mu    sync.Mutex
	fault hooktest.Fault
	only  string // the resource that fails; "" for all
}

// NewFaulty returns a client without a fault.
func NewFaulty(client dynamic.Interface) *Faulty { return &Faulty{Interface: client} }

// Set makes all reads fail, or work again.
func (f *Faulty) Set(fault hooktest.Fault) { f.SetFor("", fault) }

// SetFor makes reads of one resource fail, or of all when it is "".
func (f *Faulty) SetFor(resource string, fault hooktest.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.only, f.fault = resource, fault
}

// Resource returns a client of one resource that fails as told.
func (f *Faulty) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return faultyResource{NamespaceableResourceInterface: f.Interface.Resource(r), owner: f, gvr: r}
}

type faultyResource struct {
	dynamic.NamespaceableResourceInterface

	owner *Faulty
	gvr   schema.GroupVersionResource
}

func (r faultyResource) List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	if err := r.fail(ctx, ""); err != nil {
		return nil, err
	}
	return r.NamespaceableResourceInterface.List(ctx, opts)
}

func (r faultyResource) Get(ctx context.Context, name string, opts metav1.GetOptions, sub ...string) (*unstructured.Unstructured, error) {
	if err := r.fail(ctx, name); err != nil {
		return nil, err
	}
	return r.NamespaceableResourceInterface.Get(ctx, name, opts, sub...)
}

// fail answers as an API server does in that case.
func (r faultyResource) fail(ctx context.Context, name string) error {
	r.owner.mu.Lock()
	fault := r.owner.fault
	if r.owner.only != "" && r.owner.only != r.gvr.Resource {
		fault = hooktest.Healthy
	}
	r.owner.mu.Unlock()
	resource := r.gvr.GroupResource()
	switch fault {
	case hooktest.Flaky:
		return apierrors.NewServiceUnavailable("the API server is restarting")
	case hooktest.Forbidden:
		return apierrors.NewForbidden(resource, name, nil)
	case hooktest.NotServed:
		return apierrors.NewNotFound(resource, name)
	case hooktest.Slow:
		<-ctx.Done()
		return ctx.Err()
	}
	return ctx.Err()
}
