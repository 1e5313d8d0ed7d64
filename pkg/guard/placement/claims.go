package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
)

// claim is a claim that a pod has, with the volume it is bound to.
type claim struct {
	name      string
	ephemeral bool
	missing   bool                          // there is no such claim, or it is another pod's
	object    *corev1.PersistentVolumeClaim // nil when missing
	volume    *corev1.PersistentVolume      // nil when not bound, or bound to one that does not exist
	class     *storagev1.StorageClass       // nil when none is named or it does not exist
}

func hasClaims(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// claimsOf looks up the claims of a pod, in the order of its volumes.
func (s *State) claimsOf(namespace, name string, uid types.UID, volumes []corev1.Volume) []claim {
	var out []claim
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
	for i := range volumes {
		switch v := &volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			out = append(out, s.claim(namespace, v.PersistentVolumeClaim.ClaimName))
		case v.Ephemeral != nil && uid == "":
			out = append(out, s.toBeMade(pod, v))
		case v.Ephemeral != nil:
			c := s.claim(namespace, ephemeral.VolumeClaimName(pod, v))
			c.ephemeral = true
			if c.object != nil && ephemeral.VolumeIsForPod(pod, c.object) != nil {
				c.missing = true
			}
			out = append(out, c)
		}
	}
	return out
}

// claim looks up a claim.
func (s *State) claim(namespace, name string) claim {
	c := claim{name: name, object: s.volumes.Claims[types.NamespacedName{Namespace: namespace, Name: name}]}
	if c.object == nil {
		c.missing = true
		return c
	}
	c.volume = s.volumes.Volumes[c.object.Spec.VolumeName]
	c.class = s.volumes.Classes[volume.GetPersistentVolumeClaimClass(c.object)]
	return c
}

// toBeMade is the claim that will be made for an ephemeral volume.
func (s *State) toBeMade(pod *corev1.Pod, v *corev1.Volume) claim {
	c := claim{name: ephemeral.VolumeClaimName(pod, v), ephemeral: true, object: &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: ephemeral.VolumeClaimName(pod, v)},
	}}
	if v.Ephemeral.VolumeClaimTemplate != nil {
		c.object.Spec = v.Ephemeral.VolumeClaimTemplate.Spec
	}
	c.class = s.volumes.Classes[volume.GetPersistentVolumeClaimClass(c.object)]
	return c
}

// bound reports whether a claim and its volume are bound to each other for good.
//
// Source: isPVCFullyBound in volumebinding/binder.go.
func (c *claim) bound() bool {
	return c.object.Spec.VolumeName != "" && metav1.HasAnnotation(c.object.ObjectMeta, volume.AnnBindCompleted)
}

// waits reports whether the claim is bound only once a pod that uses it has a node.
//
// Source: IsDelayBindingMode in k8s.io/component-helpers/storage/volume/pv_helpers.go, and GetPodVolumeClaims.
func (c *claim) waits() bool {
	return c.class != nil && c.class.VolumeBindingMode != nil && *c.class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer &&
		c.object.Spec.VolumeName == ""
}

// size is how much the claim asks for.
func (c *claim) size() *resource.Quantity {
	q := c.object.Spec.Resources.Requests[corev1.ResourceStorage]
	return &q
}

// fresh reports whether the claim is yet to be made and will be bound at once, wherever its provisioner likes.
func (c *claim) fresh() bool { return c.ephemeral && c.object.UID == "" && !c.waits() }
