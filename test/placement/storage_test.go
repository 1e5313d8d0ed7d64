package placement

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// storage is a fixed world of volumes, the same in every random cluster: claims of every kind in every namespace, and
// what their drivers say of the nodes n00 to n11.
type storage struct {
	volumes placement.Volumes
	objects []runtime.Object
	names   []string // of claims; one of them is missing
}

const (
	driver  = "csi.example.com"
	strict  = "strict.example.com"  // wants no pod on nodes without it
	tracked = "tracked.example.com" // says where it has room
)

func newStorage() *storage {
	s := &storage{volumes: placement.Volumes{
		Claims: map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, Volumes: map[string]*corev1.PersistentVolume{},
		Classes: map[string]*storagev1.StorageClass{}, CSINodes: map[string]*storagev1.CSINode{}, Drivers: map[string]*storagev1.CSIDriver{},
		Attachments: map[string][]*storagev1.VolumeAttachment{},
	}, names: []string{"missing"}}
	s.classes()
	s.drivers()
	for _, namespace := range spaces {
		s.bound(namespace)
		s.unbound(namespace)
	}
	s.nodes()
	return s
}

func (s *storage) keep(o runtime.Object) { s.objects = append(s.objects, o) }

func (s *storage) classes() {
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	inAB := []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: []string{"a", "b"}}}}}
	for _, c := range []*storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "wait"}, Provisioner: driver, VolumeBindingMode: &wait, AllowedTopologies: inAB},
		{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait},
		{ObjectMeta: metav1.ObjectMeta{Name: "tracked"}, Provisioner: tracked, VolumeBindingMode: &wait},
		{ObjectMeta: metav1.ObjectMeta{Name: "strict"}, Provisioner: strict, VolumeBindingMode: &wait},
		{ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: driver, VolumeBindingMode: &now},
	} {
		s.volumes.Classes[c.Name] = c
		s.keep(c)
	}
	room := quantity(5, "Gi")
	capacity := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns-a", Name: "zone-a"}, StorageClassName: "tracked", Capacity: &room,
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: "a"}},
	}
	s.volumes.Capacities = append(s.volumes.Capacities, capacity)
	s.keep(capacity)
}

func (s *storage) drivers() {
	yes := true
	for _, d := range []*storagev1.CSIDriver{
		{ObjectMeta: metav1.ObjectMeta{Name: driver}},
		{ObjectMeta: metav1.ObjectMeta{Name: strict}, Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: &yes}},
		{ObjectMeta: metav1.ObjectMeta{Name: tracked}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &yes}},
	} {
		s.volumes.Drivers[d.Name] = d
		s.keep(d)
	}
}

// claim makes a claim and names it once.
func (s *storage) claim(namespace, name, class string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity(1, "Gi")}},
		},
	}
	if change != nil {
		change(c)
	}
	s.volumes.Claims[types.NamespacedName{Namespace: namespace, Name: name}] = c
	s.keep(c)
	if namespace == spaces[0] {
		s.names = append(s.names, name)
	}
	return c
}

// volume makes a volume, bound to a claim where there is one.
func (s *storage) volume(name, class string, to *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolume)) {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: quantity(2, "Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	if to != nil {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: to.Namespace, Name: to.Name, UID: to.UID}
		v.Status.Phase = corev1.VolumeBound
		to.Spec.VolumeName = name
		to.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
		to.Status.Phase = corev1.ClaimBound
	}
	if change != nil {
		change(v)
	}
	s.volumes.Volumes[name] = v
	s.keep(v)
}

func onlyIn(zone string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
	}
}

// bound makes claims that are bound.
func (s *storage) bound(namespace string) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"bound-a": onlyIn("a"), "bound-b": onlyIn("b"), "bound": nil,
		"labelled":  func(v *corev1.PersistentVolume) { v.Labels[corev1.LabelTopologyZone] = "a__b" },
		"old-label": func(v *corev1.PersistentVolume) { v.Labels[corev1.LabelFailureDomainBetaZone] = "c" },
		"strict-b":  func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = strict },
		"in-tree": func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "x"}}
			v.Labels[corev1.LabelTopologyZone] = "a"
		},
	} {
		s.volume(namespace+"-"+name, "wait", s.claim(namespace, name, "wait", nil), change)
	}
	for _, name := range []string{"alone", "alone-too"} {
		c := s.claim(namespace, name, "wait", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		})
		s.volume(namespace+"-"+name, "wait", c, nil)
	}
	lost := s.claim(namespace, "no-volume", "wait", nil)
	lost.Spec.VolumeName = "nowhere"
	lost.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
}

// unbound makes claims that are not bound, or not any more.
func (s *storage) unbound(namespace string) {
	for _, class := range []string{"wait", "static", "tracked", "strict", "now", "no-such-class", ""} {
		s.claim(namespace, "unbound-"+class+"x", class, nil)
	}
	s.claim(namespace, "unbound-big", "tracked", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = quantity(50, "Gi")
	})
	s.claim(namespace, "static-too", "static", nil)
	s.claim(namespace, "selected", "wait", func(c *corev1.PersistentVolumeClaim) { c.Annotations["volume.kubernetes.io/selected-node"] = "n03" })
	s.claim(namespace, "lost", "wait", func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase, c.Spec.VolumeName = corev1.ClaimLost, "gone"
	})
	s.claim(namespace, "deleted", "wait", func(c *corev1.PersistentVolumeClaim) {
		now := metav1.Now()
		c.DeletionTimestamp, c.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
	})
	s.volume(namespace+"-free-a", "static", nil, onlyIn("a"))
	s.volume(namespace+"-free-b", "static", nil, onlyIn("b"))
}

// nodes makes what the drivers say of the nodes: a limit on some, and volumes that are attached whatever the pods are.
func (s *storage) nodes() {
	for i := range 12 {
		if i%4 == 3 {
			continue
		}
		name := fmt.Sprintf("n%02d", i)
		n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		limit := int32(i % 3)
		d := storagev1.CSINodeDriver{Name: driver, NodeID: name}
		if i%4 != 2 {
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, d)
		if i%2 == 0 {
			n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: strict, NodeID: name})
		}
		s.volumes.CSINodes[name] = n
		s.keep(n)
	}
	pv := "ns-a-bound"
	for _, node := range []string{"n00", "n02", "n05"} {
		a := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "at-" + node},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		}
		s.volumes.Attachments[node] = append(s.volumes.Attachments[node], a)
		s.keep(a)
	}
}
