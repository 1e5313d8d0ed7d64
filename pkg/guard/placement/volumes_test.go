package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// claims gives a pod claims of these names.
func claims(names ...string) podOption {
	return func(p *corev1.Pod) {
		for _, n := range names {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: n, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: n},
			}})
		}
	}
}

func disk(v corev1.VolumeSource) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "disk", VolumeSource: v})
	}
}

// store is a shop's volumes: data is bound to one in zone a, free waits for a node in zone b, one is for one pod alone.
func store() *Volumes {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	two, yes := int32(2), true
	class := func(name, provisioner string, zones ...string) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &wait}
		if len(zones) > 0 {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: zones}}}}
		}
		return c
	}
	v := &Volumes{
		Claims: map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, Volumes: map[string]*corev1.PersistentVolume{},
		Classes: map[string]*storagev1.StorageClass{"wait": class("wait", "csi", "b"), "static": class("static", "kubernetes.io/no-provisioner")},
		CSINodes: map[string]*storagev1.CSINode{"n1": {Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "csi", Allocatable: &storagev1.VolumeNodeResources{Count: &two}}, {Name: "strict"},
		}}}},
		Drivers: map[string]*storagev1.CSIDriver{"strict": {Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: &yes}}},
	}
	claim := func(name, class string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		c.Spec.StorageClassName = &class
		v.Claims[types.NamespacedName{Namespace: "shop", Name: name}] = c
		return c
	}
	bind := func(c *corev1.PersistentVolumeClaim, driver string) *corev1.PersistentVolume {
		o := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + c.Name, Labels: map[string]string{}}}
		o.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: c.Name}
		c.Spec.VolumeName, c.Annotations = o.Name, map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		v.Volumes[o.Name] = o
		return o
	}
	bind(claim("data", "wait"), "csi").Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}},
	}}
	bind(claim("labelled", "wait"), "csi").Labels[zone] = "a__c"
	bind(claim("old", "wait"), "csi").Labels[corev1.LabelFailureDomainBetaZone] = "a"
	bind(claim("strict", "wait"), "strict")
	for _, name := range []string{"one", "two", "three"} {
		bind(claim(name, "wait"), "csi")
	}
	alone := claim("alone", "wait")
	alone.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	bind(alone, "csi")
	claim("free", "wait")
	claim("local", "static")
	claim("pending", "")
	claim("lost", "wait").Status.Phase = corev1.ClaimLost
	return v
}

// TestVolumes: volumebinding, volumezone, volumerestrictions and nodevolumelimits.
func TestVolumes(t *testing.T) {
	nodes := []*corev1.Node{aNode("n1", inZone("a")), aNode("n2", inZone("b"))}
	elsewhere := func(claim string) string { return "claim " + claim + " is bound to a volume elsewhere" }
	both := func(reason string) map[string]string { return map[string]string{"n1": reason, "n2": reason} }
	ebs := disk(corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "v"}})
	pd := func(readOnly bool) podOption {
		return disk(corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "v", ReadOnly: readOnly}})
	}
	run(t, map[string]ask{
		"bound to a volume of a zone":    {nodes: nodes, volumes: store(), pod: aPod("a", claims("data")), want: map[string]string{"n1": "", "n2": elsewhere("data")}},
		"waits for a node, by its class": {nodes: nodes, volumes: store(), pod: aPod("a", claims("free")), want: map[string]string{"n1": "outside the topologies of storage class wait", "n2": ""}},
		"no provisioner and no volume":   {nodes: nodes, volumes: store(), pod: aPod("a", claims("local")), want: both("no volume for claim local")},
		"not bound and not waiting":      {nodes: nodes, volumes: store(), pod: aPod("a", claims("pending")), want: both("claim pending is not bound")},
		"lost":                           {nodes: nodes, volumes: store(), pod: aPod("a", claims("lost")), want: both("claim lost has lost its volume")},
		"missing":                        {nodes: nodes, volumes: store(), pod: aPod("a", claims("nosuch")), want: both("claim nosuch is missing")},
		"a label names zones":            {nodes: nodes, volumes: store(), pod: aPod("a", claims("labelled")), want: map[string]string{"n1": "", "n2": "the volume of claim labelled is in another zone"}},
		"an old label, a new node":       {nodes: nodes, volumes: store(), pod: aPod("a", claims("old")), want: map[string]string{"n1": "", "n2": "the volume of claim old is in another zone"}},
		"nodes without zones take it": {
			nodes: []*corev1.Node{aNode("n1"), aNode("n2")}, volumes: store(), pod: aPod("a", claims("labelled")), want: both(""),
		},
		"one pod alone": {
			nodes: nodes, volumes: store(), there: []*corev1.Pod{aPod("b", on("n2"), claims("alone"))}, pod: aPod("a", claims("alone")),
			want: both("claim alone is for one pod and in use"),
		},
		"a driver's limit": {
			why: "2 are attached to n1 and a third is one too many; n2 has no limit", nodes: nodes, volumes: store(),
			there: []*corev1.Pod{aPod("b", on("n1"), claims("one", "two"))}, pod: aPod("a", claims("three")),
			want: map[string]string{"n1": "too many volumes of csi", "n2": ""},
		},
		"a volume that is there already counts once": {
			nodes: nodes, volumes: store(), there: []*corev1.Pod{aPod("b", on("n1"), claims("one", "two"))}, pod: aPod("a", claims("two")), want: both(""),
		},
		"attached volumes count whoever uses them": {
			nodes: nodes, volumes: func() *Volumes {
				v, name := store(), "pv-one"
				v.Attachments = map[string][]*storagev1.VolumeAttachment{"n1": {{Spec: storagev1.VolumeAttachmentSpec{
					Attacher: "csi", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
				}}}}
				return v
			}(), there: []*corev1.Pod{aPod("b", on("n1"), claims("two"))}, pod: aPod("a", claims("three")),
			want: map[string]string{"n1": "too many volumes of csi", "n2": ""},
		},
		"a driver that wants to be there": {nodes: nodes, volumes: store(), pod: aPod("a", claims("strict")), want: map[string]string{"n1": "", "n2": "driver strict is not installed"}},
		"a disk that one pod of a node may have": {
			nodes: nodes, there: []*corev1.Pod{aPod("b", on("n1"), ebs)}, pod: aPod("a", ebs), want: map[string]string{"n1": "disk in use there", "n2": ""},
		},
		"a disk that all read": {nodes: nodes, there: []*corev1.Pod{aPod("b", on("n1"), pd(true))}, pod: aPod("a", pd(true)), want: both("")},
		"a disk that one writes": {
			nodes: nodes, there: []*corev1.Pod{aPod("b", on("n1"), pd(true))}, pod: aPod("a", pd(false)), want: map[string]string{"n1": "disk in use there", "n2": ""},
		},
	})
}

// TestEphemeralClaimOfAReplacement: the claim is made with the pod, from its template; the old pod's is no answer.
func TestEphemeralClaimOfAReplacement(t *testing.T) {
	class := "wait"
	pod := aPod("a", disk(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
	}}}))
	nodes := []*corev1.Node{aNode("n1", inZone("a")), aNode("n2", inZone("b"))}
	run(t, map[string]ask{
		"the pod itself waits for its claim": {
			nodes: nodes, volumes: store(), pod: pod, want: map[string]string{"n1": "claim a-disk is missing", "n2": "claim a-disk is missing"},
		},
		"its replacement will have one": {
			nodes: nodes, volumes: store(), pod: Replacement(pod), want: map[string]string{"n1": "outside the topologies of storage class wait", "n2": ""},
		},
	})
}
