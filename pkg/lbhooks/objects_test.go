package lbhooks_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// Sources: cloud-provider controllers/service/controller.go (by value); MetalLB internal/k8s/nodes, aws-load-balancer-controller
// pkg/backend/endpoint_utils.go and cloud-provider-azure pkg/provider/azure.go (by presence).
func TestExcludeLabel(t *testing.T) {
	value := func(s string) *string { return &s }
	for name, test := range map[string]struct {
		value               *string
		byValue, byPresence bool
	}{
		"absent":         {},
		"true":           {value: value("true"), byValue: true, byPresence: true},
		"1 parses":       {value: value("1"), byValue: true, byPresence: true},
		"false":          {value: value("false"), byPresence: true},
		"0 parses":       {value: value("0"), byPresence: true},
		"empty":          {value: value(""), byValue: true, byPresence: true},
		"unparsable":     {value: value("karpenter"), byValue: true, byPresence: true},
		"yes is no bool": {value: value("yes"), byValue: true, byPresence: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{}
			if test.value != nil {
				n.Labels = map[string]string{lbhooks.ExcludeLabel: *test.value}
			}
			if got := lbhooks.ExcludedByValue(n); got != test.byValue {
				t.Errorf("by value %t, want %t", got, test.byValue)
			}
			if got := lbhooks.ExcludedByPresence(n); got != test.byPresence {
				t.Errorf("by presence %t, want %t", got, test.byPresence)
			}
		})
	}
}

func TestVirtual(t *testing.T) {
	labelled := func(k, v string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{k: v}}}
	}
	tainted := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "azure"}}}}
	for name, test := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"virtual-kubelet label": {labelled("type", "virtual-kubelet"), true},
		"virtual-kubelet taint": {tainted, true},
		"fargate":               {labelled("eks.amazonaws.com/compute-type", "fargate"), true},
		"other type":            {labelled("type", "gpu"), false},
		"plain":                 {&corev1.Node{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lbhooks.Virtual(test.node); got != test.want {
				t.Errorf("%t, want %t", got, test.want)
			}
		})
	}
}

func TestMemo(t *testing.T) {
	var memo lbhooks.Memo[int]
	derived := 0
	derive := func(lbhooks.Objects) int { derived++; return derived }
	a, b := &hooktest.Objects{}, &hooktest.Objects{}
	for i, step := range []struct {
		objects lbhooks.Objects
		want    int
	}{{a, 1}, {a, 1}, {b, 2}, {b, 2}, {a, 3}} {
		if got := memo.Get(step.objects, derive); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	for i, step := range []struct {
		objects lbhooks.Objects
		want    int
	}{{steady{a, 1}, 4}, {steady{b, 1}, 4}, {steady{b, 2}, 5}, {b, 6}} {
		if got := memo.GetSteady(step.objects, derive); got != step.want {
			t.Errorf("steady step %d: %d, want %d", i, got, step.want)
		}
	}
}

// steady is Objects of which nothing but nodes and slices is another for the same version.
type steady struct {
	*hooktest.Objects
	version int
}

func (s steady) Steady() any { return s.version }
