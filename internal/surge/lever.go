package surge

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
)

// reading is a lever as it stands.
type reading struct {
	lever  Lever
	object *unstructured.Unstructured
	value  *int64 // nil: absent
	most   int64  // 0: no limit
	mark   *Mark  // nil: no surge stands
}

func readingOf(l Lever, o *unstructured.Unstructured) *reading {
	k := kinds[l.Kind]
	r := &reading{lever: l, object: o, mark: parseMark(o.GetLabels()[Label])}
	if v, ok, err := unstructured.NestedInt64(o.Object, "spec", k.field); ok && err == nil {
		r.value = &v
	}
	if k.most != "" {
		r.most, _, _ = unstructured.NestedInt64(o.Object, "spec", k.most)
	}
	return r
}

// stands reports whether the number is the one that the mark says it was raised to.
func (r *reading) stands() bool { return r.mark != nil && r.value != nil && *r.value == r.mark.To }

// number is the value, 0 where it is absent.
func (r *reading) number() int64 {
	if r.value == nil {
		return 0
	}
	return *r.value
}

func (b *Bringer) read(ctx context.Context, l Lever) (*reading, error) {
	o, err := b.Dynamic.Resource(kinds[l.Kind].resource).Namespace(l.Workload.Namespace).Get(ctx, l.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read %s %s/%s: %w", l.Kind, l.Workload.Namespace, l.Name, err)
	}
	return readingOf(l, o), nil
}

// change is what one patch does to a lever: the number, unless it stays, and the label, which nil removes.
type change struct {
	number bool
	value  *int64
	mark   *Mark
}

// write carries out a change of a lever that is still as it was read; else the error is a Conflict.
func (b *Bringer) write(ctx context.Context, r *reading, c change) error {
	var label any
	if c.mark != nil {
		label = c.mark.String()
	}
	doc := map[string]any{"metadata": map[string]any{
		"resourceVersion": r.object.GetResourceVersion(), "labels": map[string]any{Label: label},
	}}
	if c.number {
		var value any
		if c.value != nil {
			value = *c.value
		}
		doc["spec"] = map[string]any{kinds[r.lever.Kind].field: value}
	}
	data, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("encode the patch of %s: %w", r.lever, err)
	}
	_, err = b.Dynamic.Resource(kinds[r.lever.Kind].resource).Namespace(r.lever.Workload.Namespace).Patch(ctx, r.lever.Name,
		types.MergePatchType, data, metav1.PatchOptions{FieldManager: claim.FieldManager})
	if err != nil {
		return fmt.Errorf("patch %s %s/%s: %w", r.lever.Kind, r.lever.Workload.Namespace, r.lever.Name, err)
	}
	return nil
}

// writer names who wrote the number of a lever last, as far as managedFields tell.
func (r *reading) writer() string {
	field := `"f:` + kinds[r.lever.Kind].field + `"`
	var newest *metav1.ManagedFieldsEntry
	managed := r.object.GetManagedFields()
	for i := range managed {
		e := &managed[i]
		if e.Subresource == "status" || e.Manager == claim.FieldManager || e.Time == nil || e.FieldsV1 == nil || !strings.Contains(string(e.FieldsV1.GetRawBytes()), field) {
			continue
		}
		if newest == nil || newest.Time.Before(e.Time) {
			newest = e
		}
	}
	if newest == nil {
		return ""
	}
	return fmt.Sprintf(" by %q", newest.Manager)
}
