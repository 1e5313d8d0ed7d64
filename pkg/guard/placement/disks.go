package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// excludes reports whether a volume of a pod is a disk that two pods of a node may not both have.
//
// Source: needsRestrictionsCheck in volumerestrictions/volume_restrictions.go.
func excludes(v *corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// volumeConflicts is the rule of disks that exclude each other, and of claims that one pod alone may use.
//
// Source: PreFilter and Filter in volumerestrictions/volume_restrictions.go.
func volumeConflicts(s *State, in *incoming) check {
	for i := range in.Spec.Volumes {
		if c := in.Spec.Volumes[i].PersistentVolumeClaim; c != nil && s.alone(in.Namespace, c.ClaimName) {
			return everywhere("claim " + c.ClaimName + " is for one pod and in use")
		}
	}
	if !slices.ContainsFunc(in.Spec.Volumes, func(v corev1.Volume) bool { return excludes(&v) }) {
		return nil
	}
	return func(n *node) string {
		for _, o := range n.pods {
			for i := range o.Volumes {
				for k := range in.Spec.Volumes {
					if conflict(&in.Spec.Volumes[k], &o.Volumes[i]) {
						return "disk in use there"
					}
				}
			}
		}
		return ""
	}
}

// alone reports whether a claim is for one pod alone and one that is there already uses it.
func (s *State) alone(namespace, name string) bool {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if s.claims[key] == 0 {
		return false
	}
	c := s.volumes.Claims[key]
	return c != nil && slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod)
}

// conflict reports whether two volumes are one disk that a node cannot give to both.
//
// Source: isVolumeConflict in volumerestrictions/volume_restrictions.go.
func conflict(a, b *corev1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x, y := a.GCEPersistentDisk, b.GCEPersistentDisk
		return x.PDName == y.PDName && (!x.ReadOnly || !y.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && (!a.ISCSI.ReadOnly || !b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		x, y := a.RBD, b.RBD
		monitor := slices.ContainsFunc(x.CephMonitors, func(m string) bool { return slices.Contains(y.CephMonitors, m) })
		return monitor && x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && (!x.ReadOnly || !y.ReadOnly)
	}
	return false
}
