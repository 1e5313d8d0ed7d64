package cluster

import (
	"maps"
	"reflect"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestOccupantsShare takes pods of several workloads: what pods of one have in common is kept once, and no pod gets another's labels.
func TestOccupantsShare(t *testing.T) {
	p := newPlacing(nil, nil)
	labels := []map[string]string{{"a": "b", "c": "d"}, {"a": "d", "c": "b"}, {"b": "a", "c": "d"}, {"a": "b"}, {"a": "b", "c": "d", "e": ""}, {}}
	controls := true
	for i := range 2 * len(labels) {
		p.take(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(string(rune('A' + i))), Labels: maps.Clone(labels[i%len(labels)]),
				OwnerReferences: []metav1.OwnerReference{{UID: types.UID([]byte("owner")), Controller: &controls}},
			},
			Spec: corev1.PodSpec{NodeName: "n"},
		})
	}
	first, again := p.cluster.Pods[:len(labels)], p.cluster.Pods[len(labels):]
	for i := range labels {
		if !maps.Equal(first[i].Labels, labels[i]) || !maps.Equal(again[i].Labels, labels[i]) {
			t.Errorf("labels %v and %v, want %v", first[i].Labels, again[i].Labels, labels[i])
		}
		if reflect.ValueOf(first[i].Labels).Pointer() != reflect.ValueOf(again[i].Labels).Pointer() {
			t.Errorf("labels %v are kept twice", labels[i])
		}
		if unsafe.StringData(string(first[0].Owner)) != unsafe.StringData(string(again[i].Owner)) {
			t.Error("the owner's UID is kept twice")
		}
	}
}
