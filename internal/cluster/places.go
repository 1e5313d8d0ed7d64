package cluster

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// places are the objects that say, beside nodes and pods, where a pod can run: namespaces and volumes.
type places struct {
	namespaces  []*corev1.Namespace
	claims      []*corev1.PersistentVolumeClaim
	volumes     []*corev1.PersistentVolume
	classes     []*storagev1.StorageClass
	csiNodes    []*storagev1.CSINode
	drivers     []*storagev1.CSIDriver
	attachments []*storagev1.VolumeAttachment
	capacities  []*storagev1.CSIStorageCapacity
}

// add takes in an object of one of these kinds.
func (p *places) add(object any) {
	switch o := object.(type) {
	case *corev1.Namespace:
		p.namespaces = append(p.namespaces, o)
	case *corev1.PersistentVolumeClaim:
		p.claims = append(p.claims, o)
	case *corev1.PersistentVolume:
		p.volumes = append(p.volumes, o)
	case *storagev1.StorageClass:
		p.classes = append(p.classes, o)
	case *storagev1.CSINode:
		p.csiNodes = append(p.csiNodes, o)
	case *storagev1.CSIDriver:
		p.drivers = append(p.drivers, o)
	case *storagev1.VolumeAttachment:
		p.attachments = append(p.attachments, o)
	case *storagev1.CSIStorageCapacity:
		p.capacities = append(p.capacities, o)
	}
}

// counts is how many objects of each kind there are, none of those that there are none of.
func (p *places) counts() map[string]int {
	out := map[string]int{}
	for kind, n := range map[string]int{
		"Namespace": len(p.namespaces), "PersistentVolumeClaim": len(p.claims), "PersistentVolume": len(p.volumes),
		"StorageClass": len(p.classes), "CSINode": len(p.csiNodes), "CSIDriver": len(p.drivers),
		"VolumeAttachment": len(p.attachments), "CSIStorageCapacity": len(p.capacities),
	} {
		if n > 0 {
			out[kind] = n
		}
	}
	return out
}

// spaces are the labels of the namespaces.
func (p *places) spaces() map[string]map[string]string {
	out := make(map[string]map[string]string, len(p.namespaces))
	for _, n := range p.namespaces {
		out[n.Name] = n.Labels
	}
	return out
}

// volumesOf indexes what says where volumes are.
func (p *places) volumesOf() *placement.Volumes {
	v := &placement.Volumes{
		Claims:  make(map[types.NamespacedName]*corev1.PersistentVolumeClaim, len(p.claims)),
		Volumes: make(map[string]*corev1.PersistentVolume, len(p.volumes)), Classes: map[string]*storagev1.StorageClass{},
		CSINodes: make(map[string]*storagev1.CSINode, len(p.csiNodes)), Drivers: map[string]*storagev1.CSIDriver{},
		Attachments: map[string][]*storagev1.VolumeAttachment{}, Capacities: p.capacities,
	}
	for _, c := range p.claims {
		v.Claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	for _, o := range p.volumes {
		v.Volumes[o.Name] = o
	}
	for _, c := range p.classes {
		v.Classes[c.Name] = c
	}
	for _, n := range p.csiNodes {
		v.CSINodes[n.Name] = n
	}
	for _, d := range p.drivers {
		v.Drivers[d.Name] = d
	}
	for _, a := range p.attachments {
		v.Attachments[a.Spec.NodeName] = append(v.Attachments[a.Spec.NodeName], a)
	}
	return v
}

func trimNamespace(n *corev1.Namespace, in interner) *corev1.Namespace {
	trimMeta(&n.ObjectMeta, in)
	n.Annotations = nil
	return n
}

func trimClaim(c *corev1.PersistentVolumeClaim, in interner) *corev1.PersistentVolumeClaim {
	trimMeta(&c.ObjectMeta, in)
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: c.Status.Phase}
	return c
}

// trimVolumeObject keeps where a volume is, to whom it is bound, and of its source the driver and handle.
func trimVolumeObject(v *corev1.PersistentVolume, in interner) *corev1.PersistentVolume {
	trimMeta(&v.ObjectMeta, in)
	if c := v.Spec.CSI; c != nil {
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: in.of(c.Driver), VolumeHandle: c.VolumeHandle}
	}
	return v
}

// trimAny keeps an object as it is: those of few fields.
func trimAny[T any](o *T, _ interner) *T { return o }

// Placement returns what is known of where pods can be placed: of files everything in them, of a cluster what was read
// because Scope.Placement asked for it; nil when nothing was.
func (s *Snapshot) Placement() *placement.Cluster {
	if s.placing != nil || s.agents != nil { // agents are listed by selector only where a cluster was read
		return s.placing
	}
	c := &placement.Cluster{Namespaces: s.places.spaces()}
	for _, n := range s.nodes {
		c.Nodes = append(c.Nodes, placement.Node{Object: n, Whole: true})
	}
	for _, n := range s.nodes {
		for _, p := range s.podsOn[n.Name] {
			if placement.Counts(p) {
				c.Pods = append(c.Pods, placement.OccupantOf(p))
			}
		}
	}
	if len(s.places.claims) > 0 {
		c.Volumes = s.places.volumesOf()
		s.places.bindAll(c.Volumes)
	}
	return c
}

// bindAll marks the claims as bound whose status says so: dumps that were cut down may lack the annotation.
func (p *places) bindAll(v *placement.Volumes) {
	for key, c := range v.Claims {
		if c.Status.Phase != corev1.ClaimBound || c.Annotations[annBindCompleted] != "" {
			continue
		}
		o := *c
		o.Annotations = map[string]string{annBindCompleted: "yes"}
		for k, a := range c.Annotations {
			o.Annotations[k] = a
		}
		v.Claims[key] = &o
	}
}

// annBindCompleted is what the volume controller writes on a claim that it has bound.
const annBindCompleted = "pv.kubernetes.io/bind-completed"

// PlacementNote says what more than usual was read to place pods, and why; "" when nothing was.
func (s *Snapshot) PlacementNote() string { return s.placedBy }
