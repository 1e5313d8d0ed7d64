package guard

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLeastMissed: of the pods p1, the oldest, to p3, the youngest, the one that is to go after a surge.
func TestLeastMissed(t *testing.T) {
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	as := func(*corev1.Pod) {}
	for name, test := range map[string]struct {
		nodes   [3]string // of the pods
		first   func(*corev1.Pod)
		service func(*ServiceFacts)
		want    string
	}{
		"each alone on its node":            {[3]string{"n1", "n2", "n3"}, as, nil, "p3"},
		"two share a node":                  {[3]string{"n1", "n1", "n3"}, as, nil, "p2"},
		"a node that no balancer sends to":  {[3]string{"n1", "n2", "n3"}, as, announced([]string{"n2", "n3"}, "n1"), "p1"},
		"a node that is gone":               {[3]string{"gone", "n2", "n2"}, as, nil, "p1"},
		"that one terminates":               {[3]string{"gone", "n2", "n3"}, ending, nil, "p3"},
		"one is not Ready":                  {[3]string{"n1", "n2", "n3"}, unready, nil, ""},
		"one is not Ready, another is gone": {[3]string{"n1", "n2", "gone"}, unready, nil, "p3"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2", "n3")
			endpoints := make([]string, 3)
			for i, pod := range []string{"p1", "p2", "p3"} {
				endpoints[i] = test.nodes[i] + ":RS=" + pod
				w.pod(test.nodes[i], pod, func(p *corev1.Pod) {
					p.CreationTimestamp = metav1.Time{Time: time.Unix(int64(i), 0)}
					if i == 0 {
						test.first(p)
					}
				})
			}
			w.service("s", test.service, endpoints...)
			svc, _ := w.Service(Key{"a", "s"})
			got := ""
			if p := LeastMissed(w.pods, []*ServiceFacts{svc}, w); p != nil {
				got = p.Name
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
