package claim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lastWriter names the newest writer of a node's metadata or spec that is not this tool, as far as managedFields tell.
// The API records who wrote a field, not who removed one, so it is a hint.
func lastWriter(node *corev1.Node) string {
	var newest *metav1.ManagedFieldsEntry
	for i := range node.ManagedFields {
		e := &node.ManagedFields[i]
		if e.Subresource != "" || e.Manager == FieldManager || e.Time == nil {
			continue
		}
		if newest == nil || newest.Time.Before(e.Time) {
			newest = e
		}
	}
	if newest == nil || newest.Time.Time.Before(lastOwnWrite(node)) {
		return ""
	}
	return fmt.Sprintf("%q at %s", newest.Manager, newest.Time.UTC().Format(time.RFC3339))
}

// lastOwnWrite is the time of this tool's newest write that is recorded on the node.
func lastOwnWrite(node *corev1.Node) time.Time {
	var newest time.Time
	for _, e := range node.ManagedFields {
		if e.Manager == FieldManager && e.Time != nil && e.Time.After(newest) {
			newest = e.Time.Time
		}
	}
	return newest
}
