package surge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Standings lists every surge of the cluster that stands, whoever started it, by the label. Kinds that are not served, or
// may not be listed, have none.
func (b *Bringer) Standings(ctx context.Context) (map[Lever]Mark, error) {
	out := map[Lever]Mark{}
	for name, k := range kinds {
		list, err := b.Dynamic.Resource(k.resource).List(ctx, metav1.ListOptions{LabelSelector: Label})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the %s with a surge: %w", k.resource.Resource, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if l, ok := leverIn(name, o); ok {
				if m := parseMark(o.GetLabels()[Label]); m != nil {
					out[l] = *m
				}
			}
		}
	}
	return out, nil
}

// leverIn reads of an object with a mark which Deployment it scales. An autoscaler that KEDA made is none: KEDA copies the
// labels of a ScaledObject to it, and does not take them away again.
//
// Source: newHPAForScaledObject and updateHPAIfNeeded in github.com/kedacore/keda/controllers/keda/hpa.go.
func leverIn(kindName string, o *unstructured.Unstructured) (Lever, bool) {
	target := o.GetName()
	if scaledObjectOf(o) != "" {
		return Lever{}, false
	}
	if kindName != kindDeployment {
		of, _, _ := unstructured.NestedString(o.Object, "spec", "scaleTargetRef", "kind")
		target, _, _ = unstructured.NestedString(o.Object, "spec", "scaleTargetRef", "name")
		if of != "" && of != cluster.KindDeployment {
			return Lever{}, false
		}
	}
	return Lever{kindName, o.GetName(), guard.Key{Namespace: o.GetNamespace(), Name: target}}, target != ""
}

// Of reports whether a mark is of a run.
func (m Mark) Of(run string) bool { return m.Run == runPart(run) }

// Compare orders levers.
func (l Lever) Compare(o Lever) int { return strings.Compare(l.String(), o.String()) }

// Sorted lists levers in their order.
func Sorted(of map[Lever]Mark) []Lever {
	out := make([]Lever, 0, len(of))
	for l := range of {
		out = append(out, l)
	}
	slices.SortFunc(out, Lever.Compare)
	return out
}
