package feed

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
}

// TestSink: what a reflector says arrives, and a new LIST takes away what it does not name.
func TestSink(t *testing.T) {
	have := map[guard.Key]bool{}
	s := newSink(
		func(p *corev1.Pod) taken {
			return func() { have[guard.Key{Namespace: p.Namespace, Name: p.Name}] = true }
		},
		func(key guard.Key) { delete(have, key) },
	)
	steps := []struct {
		what   string
		do     func() error
		want   []string
		synced bool
	}{
		{"an object before the first LIST is over", func() error { return s.Add(pod("a")) }, []string{"a"}, false},
		{"the first LIST", func() error { return s.Replace([]any{pod("b"), pod("c")}, "1") }, []string{"b", "c"}, true},
		{"a change", func() error { return s.Update(pod("c")) }, []string{"b", "c"}, true},
		{"a deletion", func() error { return s.Delete(pod("b")) }, []string{"c"}, true},
		{"a LIST after a gap", func() error { return s.Replace([]any{pod("d")}, "9") }, []string{"d"}, true},
		{"an empty LIST", func() error { return s.Replace(nil, "10") }, nil, true},
		{"one more", func() error { return s.Add(pod("e")) }, []string{"e"}, true},
		{"a kind that is gone", func() error { s.clear(); return nil }, nil, true},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		want := map[guard.Key]bool{}
		for _, name := range step.want {
			want[guard.Key{Namespace: "shop", Name: name}] = true
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", step.what, diff)
		}
		if s.synced.Load() != step.synced {
			t.Errorf("after %s: synced %v", step.what, !step.synced)
		}
	}
	if err := s.Add("no object"); err == nil {
		t.Error("a text was taken for an object")
	}
	if err := s.Add(&corev1.Node{}); err == nil {
		t.Error("a node was taken for a pod")
	}
}
