package cluster

import (
	"maps"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Objects are the same when what is kept of them is: an object is written far more often than it changes.

// sameMeta compares metadata but for what every write changes.
func sameMeta(a, b *metav1.ObjectMeta) bool {
	x, y := *a, *b
	x.ResourceVersion, x.Generation = "", 0
	y.ResourceVersion, y.Generation = "", 0
	return equality.Semantic.DeepEqual(&x, &y)
}

func sameNode(a, b *corev1.Node) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		equality.Semantic.DeepEqual(&a.Status, &b.Status)
}

// sameToHooks reports whether two states of a node are the same to hooks: in what [lbhooks.Objects] promises them. The rest of
// a node changes often and by many hands, and changes no rotation: other annotations, since when a condition holds, what can be
// allocated.
func sameToHooks(a, b *corev1.Node) bool {
	return a.UID == b.UID && maps.Equal(a.Labels, b.Labels) && lbhooks.Claimed(a) == lbhooks.Claimed(b) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		slices.Equal(a.Status.Addresses, b.Status.Addresses) && slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, sameCondition)
}

func sameCondition(a, b corev1.NodeCondition) bool { return a.Type == b.Type && a.Status == b.Status }

func sameService(a, b *corev1.Service) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		equality.Semantic.DeepEqual(&a.Status, &b.Status)
}

func samePod(a, b *corev1.Pod) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		equality.Semantic.DeepEqual(&a.Status, &b.Status)
}

// sameDaemonSet leaves the status out: hooks ask where the pods can run.
func sameDaemonSet(a, b *appsv1.DaemonSet) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

func sameSlice(a, b *slice) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.service == b.service && a.name == b.name && a.managedBy == b.managedBy && a.headless == b.headless &&
		a.family == b.family && slices.Equal(a.ports, b.ports) && slices.Equal(a.endpoints, b.endpoints)
}

// volatile are the fields of an object that its every write changes and no rotation rests on, and those of some kinds that are
// renewed all the time. What a proof rests on is read from the API server.
var (
	volatileMeta = map[string][]string{"metadata": {"resourceVersion", "generation"}}
	volatileOf   = map[string]map[string][]string{
		kindLease.Kind:     {"spec": {"renewTime"}},
		"CalicoNodeStatus": {"status": {"lastUpdated"}}, // of either group of Calico's
	}
)

func sameCustom(gk schema.GroupKind, a, b *unstructured.Unstructured) bool {
	if len(a.Object) != len(b.Object) {
		return false
	}
	for field, x := range a.Object {
		y, ok := b.Object[field]
		if !ok || !sameBut(x, y, append(volatileMeta[field], volatileOf[gk.Kind][field]...)) {
			return false
		}
	}
	return true
}

// sameBut compares two values that are objects as a rule, without some of their fields.
func sameBut(a, b any, without []string) bool {
	x, okX := a.(map[string]any)
	y, okY := b.(map[string]any)
	if !okX || !okY {
		return reflect.DeepEqual(a, b)
	}
	for _, of := range []map[string]any{x, y} {
		for field := range of {
			if !slices.Contains(without, field) && !reflect.DeepEqual(x[field], y[field]) {
				return false
			}
		}
	}
	return true
}
