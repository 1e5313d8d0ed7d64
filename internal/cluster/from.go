package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// FromObjects builds a snapshot from typed or unstructured objects whose apiVersion and kind are set, as if they had
// been read from a file.
func FromObjects(objects ...runtime.Object) (*Snapshot, error) {
	r := newReader()
	for i, o := range objects {
		raw, err := json.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("object %d: %w", i, err)
		}
		doc := document{text: bytes.TrimSpace(raw), line: 1}
		if err := r.document(context.Background(), doc); err != nil {
			return nil, fmt.Errorf("object %d: %w", i, err)
		}
	}
	return r.listing().seal(), nil
}
