package manners

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/safedrain/safedrain/internal/claim"
)

// What the gate wrote goes, and nothing else.
func TestClearNodes(t *testing.T) {
	node := func(name string, annotations map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	client := fake.NewClientset(
		node("a", map[string]string{AnnotationDelay: "true", claim.AnnotationRefused: "2026-11-30T14:00:00Z", "other": "x"}),
		node("b", map[string]string{claim.Annotation: "{}"}),
	)
	for _, dryRun := range []bool{true, false} {
		if n, err := ClearNodes(t.Context(), client, dryRun); err != nil || n != 1 {
			t.Errorf("dry run %v: cleared %d nodes: %v", dryRun, n, err)
		}
	}
	for name, left := range map[string]string{"a": "other", "b": claim.Annotation} {
		n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := n.Annotations[left]; !ok || len(n.Annotations) != 1 {
			t.Errorf("%s: %v", name, n.Annotations)
		}
	}
}
