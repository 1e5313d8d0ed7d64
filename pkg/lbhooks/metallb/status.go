package metallb

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// status is a ServiceL2Status or ServiceBGPStatus.
type status struct {
	namespace string // MetalLB's
	name      string
	service   types.NamespacedName
	node      string // status.node, or the label while the status is not filled yet
	labelled  string // the label; differs from node only in objects that nobody should trust
	speaker   string // the owning pod
	created   string // RFC 3339; may be empty
	version   string // resourceVersion
}

// statusOf reads what matching needs, without copies: a large cluster has as many of these objects as Services.
func statusOf(u *unstructured.Unstructured) status {
	field := func(name, label string) string {
		value, _, _ := unstructured.NestedString(u.Object, "status", name)
		return cmp.Or(value, labelOf(u, label))
	}
	return status{
		namespace: u.GetNamespace(), name: u.GetName(), version: u.GetResourceVersion(), labelled: labelOf(u, LabelNode),
		service: types.NamespacedName{
			Namespace: field("serviceNamespace", LabelServiceNamespace),
			Name:      field("serviceName", LabelServiceName),
		},
		node: field("node", LabelNode),
	}
}

func labelOf(u *unstructured.Unstructured, key string) string {
	value, _, _ := unstructured.NestedString(u.Object, "metadata", "labels", key)
	return value
}

// withOrigin adds who wrote the status and when, for evidence.
func (s status) withOrigin(u *unstructured.Unstructured) status {
	for _, owner := range u.GetOwnerReferences() {
		if owner.Kind == "Pod" {
			s.speaker = owner.Name
		}
	}
	if at := u.GetCreationTimestamp(); !at.IsZero() {
		s.created = at.UTC().Format(time.RFC3339)
	}
	return s
}

// names reports whether the status says, in its status or its label, that the node announces.
func (s *status) names(node string) bool { return s.node == node || s.labelled == node }

// nodesNamed returns the nodes that the statuses name, sorted, each once.
func nodesNamed(all []status) []string {
	var out []string
	for i := range all {
		for _, node := range []string{all[i].node, all[i].labelled} {
			if node != "" {
				out = append(out, node)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
