package guard

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// memberName is the name of a StatefulSet's pod: that of the set, and its ordinal.
var memberName = regexp.MustCompile(`^(.*)-([0-9]+)$`)

// ordinal is the ordinal of a pod of the StatefulSet; false when it is none of its pods.
func (t *ScaleTarget) ordinal(p *corev1.Pod) (int64, bool) {
	m := memberName.FindStringSubmatch(p.Name)
	if m == nil || m[1] != t.StatefulSet.Name {
		return 0, false
	}
	n, err := strconv.ParseInt(m[2], 10, 32)
	return n, err == nil
}

// members lists the pods of the StatefulSet that are not terminating.
func (t *ScaleTarget) members() []*corev1.Pod {
	selector, err := metav1.LabelSelectorAsSelector(t.StatefulSet.Spec.Selector)
	if err != nil {
		return nil
	}
	var out []*corev1.Pod
	for _, p := range t.Pods {
		_, member := t.ordinal(p)
		orphan := metav1.GetControllerOfNoCopy(p) == nil
		if member && p.Namespace == t.Key.Namespace && p.DeletionTimestamp == nil && (orphan || controlledBy(p, t.StatefulSet)) &&
			selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// ordinals is the choice of the StatefulSet controller: every pod whose ordinal is out of range, the highest first. With the
// policy OrderedReady it goes one at a time, and waits while another pod is not available; it takes the same ones.
//
// Source: updateStatefulSet in k8s.io/kubernetes/pkg/controller/statefulset/stateful_set_control.go.
func (t *ScaleTarget) ordinals(after int32) drawn {
	start := int64(0)
	if o := t.StatefulSet.Spec.Ordinals; o != nil {
		start = int64(o.Start)
	}
	var c drawn
	for _, p := range t.members() {
		if n, _ := t.ordinal(p); n < start || n >= start+int64(after) {
			c.sure = append(c.sure, chosen{p, "ordinal " + strconv.FormatInt(n, 10)})
		}
	}
	slices.SortFunc(c.sure, func(a, b chosen) int {
		x, _ := t.ordinal(a.pod)
		y, _ := t.ordinal(b.pod)
		return cmp.Compare(y, x)
	})
	return c
}
