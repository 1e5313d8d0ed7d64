package balancers

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/test/controlplane"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define makes the cluster serve every kind that is defined in a directory, and waits until it does.
func (m *MetalLB) define(ctx context.Context, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no definitions of MetalLB's kinds in %q", dir)
	}
	var names []string
	for _, file := range files { // Glob sorts
		u := &unstructured.Unstructured{}
		if err := readManifest(file, &u.Object); err != nil {
			return err
		}
		widen(u.Object)
		if _, err := m.dynamic.Resource(definitions).Create(ctx, u, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("define %s: %w", u.GetName(), err)
		}
		names = append(names, u.GetName())
	}
	for _, name := range names {
		if err := m.waitServed(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *MetalLB) waitServed(ctx context.Context, name string) error {
	return controlplane.Poll(ctx, 30*time.Second, name+" served", func(ctx context.Context) (bool, string, error) {
		u, err := m.dynamic.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return true, "", err
			}
		}
		return false, "not established", err
	})
}

// widen makes 64-bit numbers of those that a definition gives 32 bits and a maximum beyond them: AS numbers are unsigned,
// and Kubernetes 1.37 refuses a maximum that its format cannot hold.
func widen(value any) {
	switch v := value.(type) {
	case map[string]any:
		if largest, ok := v["maximum"].(float64); ok && v["format"] == "int32" && largest > math.MaxInt32 {
			v["format"] = "int64"
		}
		for _, inner := range v {
			widen(inner)
		}
	case []any:
		for _, inner := range v {
			widen(inner)
		}
	}
}
