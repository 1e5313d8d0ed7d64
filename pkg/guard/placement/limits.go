package placement

import (
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
)

// volumeNames are volumes by their unique name, with the driver that attaches them.
type volumeNames map[string]string

// attached is what drivers have attached to a node, or will have for the pods that are there.
type attached struct {
	limits  map[string]int64 // by driver; no entry where there is none
	there   volumeNames      // of its pods
	drivers map[string]int64 // volumes by driver, those that no pod of the node has included
}

// attachLimits is the rule of how many volumes a driver can attach to a node. Volumes of drivers that are built into
// Kubernetes are not counted.
//
// Source: Filter in nodevolumelimits/csi.go.
func attachLimits(s *State, in *incoming) check {
	if !hasClaims(in.Pod) {
		return nil
	}
	wanted := volumeNames{}
	for _, c := range s.claimsOf(in.Namespace, in.Name, in.UID, in.Spec.Volumes) {
		if c.missing {
			return everywhere("claim " + c.name + " is missing")
		}
		wanted.add(&c)
	}
	if len(wanted) == 0 {
		return nil
	}
	drivers := slices.Compact(slices.Sorted(maps.Values(wanted)))
	return func(n *node) string {
		csi := s.volumes.CSINodes[n.object.Name]
		for _, driver := range drivers {
			if s.mustHave(driver) && !has(csi, driver) {
				return "driver " + driver + " is not installed"
			}
		}
		if full := s.full(n, wanted); full != "" {
			return "too many volumes of " + full
		}
		return ""
	}
}

// add counts the volume of a claim. One that is yet to be made counts under the claim's name.
//
// Source: getCSIDriverInfo and getCSIDriverInfoFromSC in nodevolumelimits/csi.go.
func (a volumeNames) add(c *claim) {
	switch {
	case c.volume != nil && c.volume.Spec.CSI != nil:
		a.named(c.volume.Spec.CSI.Driver, c.volume.Spec.CSI.VolumeHandle)
	case c.volume != nil:
	case c.class != nil && !slices.Contains(builtIn[:], c.class.Provisioner):
		a.named(c.class.Provisioner, "claim "+c.object.Namespace+"/"+c.object.Name)
	}
}

func (a volumeNames) named(driver, handle string) {
	if driver != "" && handle != "" {
		a[driver+"/"+handle] = driver
	}
}

// builtIn are the provisioners of Kubernetes itself, whose work a CSI driver has taken over.
var builtIn = [...]string{
	"kubernetes.io/aws-ebs", "kubernetes.io/gce-pd", "kubernetes.io/azure-disk", "kubernetes.io/azure-file",
	"kubernetes.io/cinder", "kubernetes.io/vsphere-volume", "kubernetes.io/portworx-volume",
}

// mustHave reports whether a driver wants no pods on nodes that lack it.
func (s *State) mustHave(driver string) bool {
	d := s.volumes.Drivers[driver]
	return d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing
}

func has(csi *storagev1.CSINode, driver string) bool {
	return csi != nil && slices.ContainsFunc(csi.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
}

// full names a driver that could not attach all wanted volumes besides those that are there; "" when all can.
func (s *State) full(n *node, wanted volumeNames) string {
	if n.attached == nil {
		n.attached = s.attachedTo(n)
	}
	a := n.attached
	if len(a.limits) == 0 {
		return ""
	}
	more := map[string]int64{}
	for name, driver := range wanted {
		if _, ok := a.there[name]; !ok {
			more[driver]++
		}
	}
	for _, driver := range slices.Sorted(maps.Keys(more)) {
		if limit, ok := a.limits[driver]; ok && more[driver]+a.drivers[driver] > limit {
			return driver
		}
	}
	return ""
}

// attachedTo counts the volumes of a node; nothing where nothing limits them.
func (s *State) attachedTo(n *node) *attached {
	a := &attached{limits: limitsOf(s.volumes.CSINodes[n.object.Name]), there: volumeNames{}, drivers: map[string]int64{}}
	if len(a.limits) == 0 {
		return a
	}
	for _, o := range n.pods {
		for _, c := range s.claimsOf(o.Namespace, o.Name, o.UID, o.Volumes) {
			if !c.missing {
				a.there.add(&c)
			}
		}
	}
	for _, driver := range a.there {
		a.drivers[driver]++
	}
	for name, driver := range s.attachments(n.object.Name) {
		if _, ok := a.there[name]; !ok {
			a.drivers[driver]++
		}
	}
	return a
}

// limitsOf is how many volumes each driver can attach to a node; no entry where there is no limit.
func limitsOf(csi *storagev1.CSINode) map[string]int64 {
	out := map[string]int64{}
	if csi == nil {
		return out
	}
	for i := range csi.Spec.Drivers {
		if d := &csi.Spec.Drivers[i]; d.Allocatable != nil && d.Allocatable.Count != nil {
			out[d.Name] = int64(*d.Allocatable.Count)
		}
	}
	return out
}

// attachments are the volumes that are attached to a node, whoever uses them.
//
// Source: getNodeVolumeAttachmentInfo in nodevolumelimits/csi.go.
func (s *State) attachments(node string) volumeNames {
	out := volumeNames{}
	for _, a := range s.volumes.Attachments[node] {
		if a.Spec.Attacher == "" || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if v := s.volumes.Volumes[*a.Spec.Source.PersistentVolumeName]; v != nil && v.Spec.CSI != nil {
			out[a.Spec.Attacher+"/"+v.Spec.CSI.VolumeHandle] = a.Spec.Attacher
		}
	}
	return out
}
