package aws

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// AnnotationRecord on a Node holds what the hook deregistered there: by Service and target group, the targets as they were.
const AnnotationRecord = "safedrain.dev/aws-deregistered"

// registration is one target as it stood in its group.
type registration struct {
	ID     string `json:"id"`
	Port   int32  `json:"port,omitempty"`
	Zone   string `json:"zone,omitempty"`
	Server string `json:"quicServerID,omitempty"`
}

func (r registration) compare(o registration) int {
	return cmp.Or(cmp.Compare(r.ID, o.ID), cmp.Compare(r.Port, o.Port), cmp.Compare(r.Zone, o.Zone))
}

// targets turns registrations into what the SDK sends; what was not set is left out.
func targets(all []registration) []types.TargetDescription {
	var out []types.TargetDescription
	for _, r := range all {
		out = append(out, types.TargetDescription{Id: &r.ID, Port: given(r.Port), AvailabilityZone: given(r.Zone), QuicServerId: given(r.Server)})
	}
	return out
}

func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// record is the annotation: namespace/name -> ARN -> targets.
type record map[string]map[string][]registration

func readRecord(n *corev1.Node) (record, error) {
	r := record{}
	text := n.Annotations[AnnotationRecord]
	if text == "" {
		return r, nil
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("%s: annotation %s of node %q cannot be read: mend or remove it: %w", Name, AnnotationRecord, n.Name, err)
	}
	return r, nil
}

// recorded returns what stands on the node about a Service.
func (h *Hook) recorded(ctx context.Context, t lbhooks.Target) (map[string][]registration, error) {
	n, err := h.kube.CoreV1().Nodes().Get(ctx, t.Node.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, lbhooks.ReadFailed(Name, "get", "nodes", err)
	}
	r, err := readRecord(n)
	return r[keyOf(t.Service).String()], err
}

// record adds targets to the annotation; what stands there already stays.
func (h *Hook) record(ctx context.Context, t lbhooks.Target, arn string, all []registration) error {
	return h.rewrite(ctx, t.Node.Name, func(r record) {
		key := keyOf(t.Service).String()
		if r[key] == nil {
			r[key] = map[string][]registration{}
		}
		merged := append(slices.Clone(all), r[key][arn]...)
		slices.SortFunc(merged, registration.compare)
		r[key][arn] = slices.Compact(merged)
	})
}

func (h *Hook) unrecord(ctx context.Context, t lbhooks.Target, arn string) error {
	return h.rewrite(ctx, t.Node.Name, func(r record) {
		key := keyOf(t.Service).String()
		delete(r[key], arn)
		if len(r[key]) == 0 {
			delete(r, key)
		}
	})
}

// rewrite changes the annotation on the newest version of the node, again when somebody else changed the node meanwhile.
func (h *Hook) rewrite(ctx context.Context, node string, change func(record)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := h.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return lbhooks.ReadFailed(Name, "get", "nodes", err)
		}
		r, err := readRecord(n)
		if err != nil {
			return err
		}
		change(r)
		patch, err := recordPatch(n.ResourceVersion, r)
		if err != nil {
			return err
		}
		_, err = h.kube.CoreV1().Nodes().Patch(ctx, node, apitypes.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsConflict(err) || err == nil {
			return err
		}
		return lbhooks.ReadFailed(Name, "patch", "nodes", err)
	})
}

// recordPatch sets the annotation, or removes it when nothing is left to say.
func recordPatch(version string, r record) ([]byte, error) {
	var text *string
	if len(r) > 0 {
		raw, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		s := string(raw)
		text = &s
	}
	meta := map[string]any{"annotations": map[string]*string{AnnotationRecord: text}}
	if version != "" {
		meta["resourceVersion"] = version
	}
	return json.Marshal(map[string]any{"metadata": meta})
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
