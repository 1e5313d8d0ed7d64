package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTrimPodKeepsAgentSettings: MetalLB's hook reads how the speakers run from their arguments; of other pods they are
// neither needed nor kept.
func TestTrimPodKeepsAgentSettings(t *testing.T) {
	pod := func(hostNetwork bool, owner string) *corev1.Pod {
		yes := true
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", OwnerReferences: []metav1.OwnerReference{{Kind: owner, Name: "o", Controller: &yes}}},
			Spec: corev1.PodSpec{HostNetwork: hostNetwork, Containers: []corev1.Container{{
				Name: "c", Image: "i", Args: []string{"--ignore-exclude-lb"},
				Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "S", ValueFrom: &corev1.EnvVarSource{}}},
			}}},
		}
	}
	want := []corev1.Container{{Name: "c", Args: []string{"--ignore-exclude-lb"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}
	if d := cmp.Diff(want, trimPod(pod(true, "DaemonSet"), interner{}).Spec.Containers); d != "" {
		t.Errorf("an agent's containers (-want +got):\n%s", d)
	}
	for _, p := range []*corev1.Pod{pod(false, "DaemonSet"), pod(true, "ReplicaSet")} {
		if d := cmp.Diff([]corev1.Container{{Name: "c"}}, trimPod(p, interner{}).Spec.Containers); d != "" {
			t.Errorf("another pod's containers (-want +got):\n%s", d)
		}
	}
}
