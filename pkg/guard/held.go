package guard

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// AnnotationHold on a Service with the value "true" asks that its pods be held where nothing else takes a node out.
	AnnotationHold = "safedrain.dev/hold"
	// AnnotationHeld on a Pod says that it is held: see [Held].
	AnnotationHeld = "safedrain.dev/held"
)

// Held is the value of the annotation safedrain.dev/held on a Pod: a drain changed labels of it so that Services no longer
// select it, while slices of the drain's own keep it served.
type Held struct {
	V       int               `json:"v"`
	Run     string            `json:"run"`
	Node    string            `json:"node"`
	Labels  map[string]string `json:"labels"`            // the labels that were changed, with what stood there before
	Forward bool              `json:"forward,omitempty"` // its owner has released it: the change is not undone
}

// HeldOf returns what the annotation on a pod says; false when it is not held. One that cannot be read is a hold of which
// nothing else is known.
func HeldOf(pod *corev1.Pod) (Held, bool) {
	text, ok := pod.Annotations[AnnotationHeld]
	if !ok {
		return Held{}, false
	}
	var h Held
	if json.Unmarshal([]byte(text), &h) != nil {
		return Held{Forward: true}, true
	}
	return h, true
}

// String is the value of the annotation.
func (h Held) String() string {
	h.V = 1
	b, _ := json.Marshal(h) // a Held holds nothing that cannot be encoded
	return string(b)
}

// HeldValue is what a changed label of a pod is set to: unique, a valid label value, and the same at every try.
func HeldValue(uid types.UID) string { return "held-" + string(uid) }

// LabelsBefore returns the labels of a pod as they were before it was held.
func LabelsBefore(pod *corev1.Pod) map[string]string {
	h, ok := HeldOf(pod)
	if !ok || len(h.Labels) == 0 {
		return pod.Labels
	}
	out := maps.Clone(pod.Labels)
	maps.Copy(out, h.Labels)
	return out
}

// Selects reports whether the selector of a Service selects labels. One without any key selects nothing.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return len(selector) > 0
}
