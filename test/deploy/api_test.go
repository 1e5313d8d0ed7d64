package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/test/controlplane"
)

// decode reads a stream of manifests.
func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(text, &u.Object); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, text)
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
}

// rendered decodes manifests and ends the test when they are none.
func rendered(t testing.TB, manifests []byte, err error) []*unstructured.Unstructured {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) == 0 {
		t.Fatal("nothing was rendered")
	}
	return objects
}

// find returns the object of a kind and name.
func find(t testing.TB, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, u := range objects {
		if u.GetKind() == kind && u.GetName() == name {
			return u
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

// as converts an object to its Go type.
func as[T any](t testing.TB, u *unstructured.Unstructured) *T {
	t.Helper()
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, out, true); err != nil {
		t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	return out
}

// api writes any object and keeps the warnings of the API server.
type api struct {
	dynamic dynamic.Interface
	mapper  meta.RESTMapper

	mu       sync.Mutex
	warnings []string
}

func newAPI(config *rest.Config) (*api, error) {
	a := &api{}
	config.WarningHandler = a
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(disco)
	if err != nil {
		return nil, err
	}
	a.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	a.dynamic, err = dynamic.NewForConfig(config)
	return a, err
}

// HandleWarningHeader keeps a warning.
func (a *api) HandleWarningHeader(_ int, _, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings = append(a.warnings, text)
}

func (a *api) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.warnings, "\n")
}

// resource returns where objects of that kind are.
func (a *api) resource(u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := u.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return a.dynamic.Resource(mapping.Resource), nil
	}
	if u.GetNamespace() == "" {
		return nil, fmt.Errorf("%s %s names no namespace", u.GetKind(), u.GetName())
	}
	return a.dynamic.Resource(mapping.Resource).Namespace(u.GetNamespace()), nil
}

// create creates an object; what its schema does not know is an error.
func (a *api) create(ctx context.Context, u *unstructured.Unstructured, dryRun ...string) error {
	resource, err := a.resource(u)
	if err != nil {
		return err
	}
	_, err = resource.Create(ctx, u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
	return err
}

func (a *api) remove(ctx context.Context, u *unstructured.Unstructured) error {
	resource, err := a.resource(u)
	if err != nil {
		return err
	}
	return resource.Delete(ctx, u.GetName(), metav1.DeleteOptions{})
}

// admin returns an api that may do everything.
func admin(t testing.TB) *api {
	t.Helper()
	a, err := newAPI(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// installCRDs makes the kinds of others known, by copies of their schemas, and waits until they are served.
func installCRDs(ctx context.Context, c *controlplane.Cluster) error {
	files, err := filepath.Glob("testdata/crds/*.yaml")
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("no schemas in testdata/crds")
	}
	a, err := newAPI(c.Config())
	if err != nil {
		return err
	}
	var kinds []schema.GroupKind
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		objects, err := decode(text)
		if err != nil {
			return err
		}
		for _, u := range objects {
			if err := a.create(ctx, u); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
			kinds = append(kinds, schema.GroupKind{Group: group, Kind: kind})
		}
	}
	return controlplane.Poll(ctx, 3*time.Minute, "kinds of others served", func(context.Context) (bool, string, error) {
		a, err := newAPI(c.Config())
		if err != nil {
			return false, err.Error(), nil
		}
		for _, gk := range kinds {
			if _, err := a.mapper.RESTMapping(gk); err != nil {
				return false, err.Error(), nil
			}
		}
		return true, "", nil
	})
}
