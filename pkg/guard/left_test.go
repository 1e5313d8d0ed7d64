package guard

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The way out of a single replica is another one that is Ready first. A StatefulSet starts none beside it, and that is said.
// C05.
func TestAdviceForTheLastEndpoint(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		says   string
	}{
		"a ReplicaSet's": {func(*corev1.Pod) {}, "add a replica on a node that stays"},
		"a StatefulSet's": {func(p *corev1.Pod) {
			p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = "StatefulSet", "db"
		}, "a StatefulSet has no surge"},
		"a pinned one's": {func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n1"}
		}, "drop the pin"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2").pod("n1", "p1", test.change).service("s", nil, "n1:RS=p1")
			plan := w.plan(Flags{}, "n1")
			for i := range plan.Services[0].Findings {
				if f := &plan.Services[0].Findings[i]; f.Code == LastEndpoint {
					if !strings.Contains(f.Advice, test.says) {
						t.Errorf("advice %q, want %q", f.Advice, test.says)
					}
					return
				}
			}
			t.Errorf("no LastEndpoint: %+v", plan.Services[0].Findings)
		})
	}
}
