package placement

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
)

// boundVolumes is the rule of the places where a pod's volumes are, or could be made.
//
// Source: PreFilter and Filter in volumebinding/volume_binding.go, FindPodVolumes in volumebinding/binder.go.
func boundVolumes(s *State, in *incoming) check {
	if !hasClaims(in.Pod) {
		return nil
	}
	var bound, waiting []claim
	for _, c := range s.claimsOf(in.Namespace, in.Name, in.UID, in.Spec.Volumes) {
		switch {
		case c.missing:
			return everywhere("claim " + c.name + " is missing")
		case c.object.Status.Phase == corev1.ClaimLost:
			return everywhere("claim " + c.name + " has lost its volume")
		case c.object.DeletionTimestamp != nil:
			return everywhere("claim " + c.name + " is being deleted")
		case c.bound() && c.volume == nil:
			return everywhere("the volume of claim " + c.name + " is missing")
		case c.bound():
			bound = append(bound, c)
		case c.waits():
			waiting = append(waiting, c)
		case c.fresh():
		default:
			return everywhere("claim " + c.name + " is not bound")
		}
	}
	slices.SortStableFunc(waiting, func(a, b claim) int { return a.size().Cmp(*b.size()) })
	ofClass := make([][]*corev1.PersistentVolume, len(waiting))
	for i := range waiting {
		ofClass[i] = s.classVolumes(&waiting[i])
	}
	return func(n *node) string {
		for i := range bound {
			if volume.CheckNodeAffinity(bound[i].volume, n.object.Labels) != nil {
				return "claim " + bound[i].name + " is bound to a volume elsewhere"
			}
		}
		return s.bindable(n, waiting, ofClass)
	}
}

// bindable says why claims that wait for a node could not be bound on this one; ofClass are the volumes of their classes.
func (s *State) bindable(n *node, waiting []claim, ofClass [][]*corev1.PersistentVolume) string {
	if len(waiting) == 0 {
		return ""
	}
	taken := map[string]*corev1.PersistentVolume{}
	var lacking []*claim
	for i := range waiting {
		c := &waiting[i]
		if selected, ok := c.object.Annotations[volume.AnnSelectedNode]; ok {
			if selected != n.object.Name {
				return "claim " + c.name + " is being bound on another node"
			}
			lacking = append(lacking, c)
			continue
		}
		found, err := volume.FindMatchingVolume(c.object, ofClass[i], n.object, taken, true, true)
		if err != nil || found == nil {
			lacking = append(lacking, c)
			continue
		}
		taken[found.Name] = found
	}
	for _, c := range lacking {
		if why := s.provisionable(n, c); why != "" {
			return why
		}
	}
	return ""
}

// classVolumes lists the volumes of a claim's class.
func (s *State) classVolumes(c *claim) []*corev1.PersistentVolume {
	class := volume.GetPersistentVolumeClaimClass(c.object)
	var out []*corev1.PersistentVolume
	for _, v := range s.volumes.Volumes {
		if volume.GetPersistentVolumeClass(v) == class {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// provisionable says why no volume could be made for a claim on a node.
//
// Source: checkVolumeProvisions in volumebinding/binder.go.
func (s *State) provisionable(n *node, c *claim) string {
	switch {
	case c.class.Provisioner == "" || c.class.Provisioner == volume.NotSupportedProvisioner:
		return "no volume for claim " + c.name
	case !inTopology(c.class.AllowedTopologies, n.object.Labels):
		return "outside the topologies of storage class " + c.class.Name
	case !s.spacious(n, c):
		return "no storage left for claim " + c.name
	}
	return ""
}

// inTopology reports whether a node is in one of the topologies that a class allows.
//
// Source: MatchTopologySelectorTerms in k8s.io/kubernetes/pkg/apis/core/v1/helper/helpers.go.
func inTopology(terms []corev1.TopologySelectorTerm, of map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 && !slices.ContainsFunc(t.MatchLabelExpressions, func(r corev1.TopologySelectorLabelRequirement) bool {
			v, ok := of[r.Key]
			return !ok || !slices.Contains(r.Values, v)
		})
	})
}

// spacious reports whether the driver of a class that says where it has room has enough of it in reach of a node.
//
// Source: hasEnoughCapacity in volumebinding/binder.go.
func (s *State) spacious(n *node, c *claim) bool {
	driver := s.volumes.Drivers[c.class.Provisioner]
	want, asked := c.object.Spec.Resources.Requests[corev1.ResourceStorage]
	if !asked || driver == nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return true
	}
	return slices.ContainsFunc(s.volumes.Capacities, func(k *storagev1.CSIStorageCapacity) bool {
		limit := k.Capacity
		if k.MaximumVolumeSize != nil {
			limit = k.MaximumVolumeSize
		}
		if k.StorageClassName != c.class.Name || limit == nil || limit.Value() < want.Value() || k.NodeTopology == nil {
			return false
		}
		reach, err := metav1.LabelSelectorAsSelector(k.NodeTopology)
		return err == nil && reach.Matches(labels.Set(n.object.Labels))
	})
}

// zoneLabels are the labels by which volumes and nodes say where they are, with the one that replaces it.
var zoneLabels = [...]struct{ key, today string }{
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
	{corev1.LabelTopologyZone, corev1.LabelTopologyZone},
	{corev1.LabelTopologyRegion, corev1.LabelTopologyRegion},
}

// zoneOf is where a volume is, by one label.
type zoneOf struct {
	claim, key, today string
	values            []string
}

// volumeZones is the rule of volumes that say by labels in which zone they are.
//
// Source: PreFilter and Filter in volumezone/volume_zone.go.
func volumeZones(s *State, in *incoming) check {
	if !hasClaims(in.Pod) {
		return nil
	}
	var zones []zoneOf
	for _, c := range s.claimsOf(in.Namespace, in.Name, in.UID, in.Spec.Volumes) {
		if c.ephemeral || c.volume == nil {
			continue
		}
		for _, l := range zoneLabels {
			if v, ok := c.volume.Labels[l.key]; ok && validZones(v) {
				zones = append(zones, zoneOf{c.name, l.key, l.today, strings.Split(v, "__")})
			}
		}
	}
	if len(zones) == 0 {
		return nil
	}
	return func(n *node) string {
		of := n.object.Labels
		if !slices.ContainsFunc(zoneLabels[:], func(l struct{ key, today string }) bool { _, ok := of[l.key]; return ok }) {
			return ""
		}
		for _, z := range zones {
			v, ok := of[z.key]
			if !ok {
				v, ok = of[z.today]
			}
			if !ok || !slices.Contains(z.values, v) {
				return "the volume of claim " + z.claim + " is in another zone"
			}
		}
		return ""
	}
}

// validZones reports whether a label's value is a list of zones.
func validZones(value string) bool {
	return !slices.ContainsFunc(strings.Split(value, "__"), func(z string) bool { return strings.TrimSpace(z) == "" })
}
