package guard

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// AnnotationKeeper on a Pod lists, with commas, the Services of its namespace for which the gate keeps it on its node
	// until the node has left their rotation. A name with "?" behind it says that the pod is kept and not relied on yet.
	AnnotationKeeper = "safedrain.dev/keeper"
	// AnnotationGate on a Service or a Namespace is the gate's mode there; on a Node the value "off" lets every eviction pass.
	AnnotationGate = "safedrain.dev/gate"
)

// PodFacts is what the rules need of one Pod that was read live.
type PodFacts struct {
	Key         Key
	UID         types.UID
	Node        string // "" while it is not bound
	Ready       bool   // condition Ready is True
	Terminating bool
	Finished    bool
	Families    []corev1.IPFamily // of its addresses; none before it has one
	Keeper      []string          // Services of its namespace that its mark names, sorted
	Relied      []string          // those of them for which the others may go while it stays
	Labels      map[string]string
}

// PodFactsOf states a Pod as the rules read it.
func PodFactsOf(pod *corev1.Pod) PodFacts {
	f := PodFacts{
		Key: Key{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID, Node: pod.Spec.NodeName,
		Terminating: terminating(pod), Finished: Finished(pod), Labels: pod.Labels,
	}
	f.Keeper, f.Relied = KeeperOf(pod.Annotations[AnnotationKeeper])
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			f.Ready = c.Status == corev1.ConditionTrue
		}
	}
	addresses := pod.Status.PodIPs
	if len(addresses) == 0 && pod.Status.PodIP != "" {
		addresses = []corev1.PodIP{{IP: pod.Status.PodIP}}
	}
	for _, a := range addresses {
		if family := familyOf(a.IP); family != "" && !slices.Contains(f.Families, family) {
			f.Families = append(f.Families, family)
		}
	}
	return f
}

// KeeperOf reads the value of the annotation safedrain.dev/keeper: the Services that the pod is kept for, and those of them
// for which it is relied on; both sorted.
func KeeperOf(value string) (kept, relied []string) {
	for name := range strings.SplitSeq(value, ",") {
		name, young := strings.CutSuffix(strings.TrimSpace(name), youngMark)
		if name == "" {
			continue
		}
		kept = append(kept, name)
		if !young {
			relied = append(relied, name)
		}
	}
	slices.Sort(kept)
	slices.Sort(relied)
	return slices.Compact(kept), slices.Compact(relied)
}

// youngMark follows the name of a Service for which a pod is kept and not relied on yet.
const youngMark = "?"

// familyOf returns the family of an address, "" for what is none.
func familyOf(ip string) corev1.IPFamily {
	switch addr, err := netip.ParseAddr(ip); {
	case err != nil:
		return ""
	case addr.Unmap().Is4():
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// passes says why the eviction of a pod is nobody's matter, "" when it is.
func (p *PodFacts) passes() EvictionReason {
	if p.Terminating || p.Finished || p.Node == "" {
		return PodPasses
	}
	return ""
}

// serves reports whether a pod, as it was read live, is or is about to be a usable endpoint of a Service that it belongs to.
func (p *PodFacts) serves(svc *ServiceFacts) bool {
	if p.passes() != "" {
		return false
	}
	return p.Ready || svc.PublishNotReady && len(p.Families) > 0
}
