package hookset

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// ciliumClass is the load balancer class of Cilium's L2 announcements.
const ciliumClass = "io.cilium/l2-announcer"

// ciliumL2 is recognised, not a hook: Cilium's own documentation rules out L2 announcements of policy Local, since a node
// without a pod may announce the address.
var ciliumL2 = lbhooks.Description{
	Name: "cilium-l2",
	Needs: []lbhooks.Need{{
		Group: "cilium.io", Version: "v2alpha1", Resource: "ciliuml2announcementpolicies", Kind: "CiliumL2AnnouncementPolicy",
		Verbs: []string{"list"}, Optional: true, Why: "recognises L2 announcements, which do not work with policy Local",
	}},
}

// ciliumUnsupported says why the combination cannot work; "" when it is not this one.
func ciliumUnsupported(svc *corev1.Service, objects lbhooks.Objects) string {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return ""
	}
	const why = "Cilium L2 announcements do not support externalTrafficPolicy Local: a node without a pod may announce the address"
	if class := svc.Spec.LoadBalancerClass; class != nil {
		if *class == ciliumClass {
			return why
		}
		return ""
	}
	for _, policy := range objects.Custom(schema.GroupKind{Group: ciliumL2.Needs[0].Group, Kind: ciliumL2.Needs[0].Kind}) {
		if announces(policy, svc) {
			return fmt.Sprintf("%s (CiliumL2AnnouncementPolicy %s)", why, policy.GetName())
		}
	}
	return ""
}

// announces reports whether a policy announces the load balancer addresses of the Service.
func announces(policy *unstructured.Unstructured, svc *corev1.Service) bool {
	if on, _, _ := unstructured.NestedBool(policy.Object, "spec", "loadBalancerIPs"); !on || len(lbhooks.Addresses(svc)) == 0 {
		return false
	}
	spec, found, err := unstructured.NestedMap(policy.Object, "spec", "serviceSelector")
	if err != nil || !found {
		return err == nil
	}
	var selector metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &selector) != nil {
		return false
	}
	matches, err := metav1.LabelSelectorAsSelector(&selector)
	return err == nil && matches.Matches(labels.Set(svc.Labels))
}
