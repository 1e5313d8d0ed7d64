package cilium

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// world is everything of Cilium in one set of objects, read once for all Services.
type world struct {
	nodes   []*corev1.Node
	adverts []advert
	pods    string            // the CiliumBGPAdvertisement that advertises the addresses of pods; "" for none
	configs []labels.Selector // of nodes, one a CiliumBGPClusterConfig
	peers   map[string]bool   // nodes that have a CiliumBGPNodeConfig
	l2      []policy

	holders        map[string]string // by the name of a Lease of an L2 announcement
	leaseNamespace string
	anyLease       bool
}

// advert is one entry of type Service of a CiliumBGPAdvertisement.
type advert struct {
	name      string
	services  labels.Selector
	addresses []string // LoadBalancerIP, ExternalIP
}

// policy is a CiliumL2AnnouncementPolicy that announces load balancer addresses.
type policy struct {
	name            string
	services, nodes labels.Selector
}

// leasePrefix begins the name of the Lease of an L2 announcement; "-<namespace>-<service>" follows.
const leasePrefix = "cilium-l2announce-"

func newWorld(objects lbhooks.Objects) *world {
	w := &world{nodes: objects.Nodes(), peers: map[string]bool{}, holders: map[string]string{}, leaseNamespace: metav1.NamespaceSystem}
	custom := func(kind string) []*unstructured.Unstructured {
		return objects.Custom(schema.GroupKind{Group: group, Kind: kind})
	}
	for _, u := range custom("CiliumBGPAdvertisement") {
		w.readAdvertisement(u)
	}
	for _, u := range custom("CiliumBGPClusterConfig") {
		if s, ok := selectorAt(u.Object, true, "spec", "nodeSelector"); ok {
			w.configs = append(w.configs, s)
		}
	}
	for _, u := range custom("CiliumBGPNodeConfig") {
		w.peers[u.GetName()] = true
	}
	for _, u := range custom("CiliumL2AnnouncementPolicy") {
		if p, ok := policyOf(u); ok {
			w.l2 = append(w.l2, p)
		}
	}
	for _, u := range objects.Custom(schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}) {
		w.anyLease = true
		if !strings.HasPrefix(u.GetName(), leasePrefix) {
			continue
		}
		w.leaseNamespace = u.GetNamespace()
		if holder, _, _ := unstructured.NestedString(u.Object, "spec", "holderIdentity"); holder != "" {
			w.holders[u.GetName()] = holder
		}
	}
	return w
}

func (w *world) readAdvertisement(u *unstructured.Unstructured) {
	entries, _, _ := unstructured.NestedSlice(u.Object, "spec", "advertisements")
	for _, e := range entries {
		entry, ok := e.(map[string]any)
		if !ok {
			continue
		}
		kind, _, _ := unstructured.NestedString(entry, "advertisementType")
		if kind == "PodCIDR" || kind == "CiliumPodIPPool" {
			w.pods = u.GetName()
		}
		addresses, _, _ := unstructured.NestedStringSlice(entry, "service", "addresses")
		// pkg/bgp/manager/reconciler/service.go: without a selector no Service is selected.
		if s, ok := selectorAt(entry, false, "selector"); ok && kind == "Service" && len(addresses) > 0 {
			w.adverts = append(w.adverts, advert{name: u.GetName(), services: s, addresses: addresses})
		}
	}
}

func policyOf(u *unstructured.Unstructured) (policy, bool) {
	if on, _, _ := unstructured.NestedBool(u.Object, "spec", "loadBalancerIPs"); !on {
		return policy{}, false
	}
	services, ok := selectorAt(u.Object, true, "spec", "serviceSelector")
	nodes, also := selectorAt(u.Object, true, "spec", "nodeSelector")
	return policy{name: u.GetName(), services: services, nodes: nodes}, ok && also
}

// selectorAt reads a label selector; one that is not there selects everything or nothing. False means that it is broken.
func selectorAt(object map[string]any, everything bool, path ...string) (labels.Selector, bool) {
	spec, found, err := unstructured.NestedMap(object, path...)
	switch {
	case err != nil:
		return nil, false
	case !found && everything:
		return labels.Everything(), true
	case !found:
		return labels.Nothing(), true
	}
	var selector metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &selector) != nil {
		return nil, false
	}
	s, err := metav1.LabelSelectorAsSelector(&selector)
	return s, err == nil
}

// labelsOf are the labels of a Service as Cilium's selectors see them.
func labelsOf(svc *corev1.Service) labels.Set {
	set := maps.Clone(svc.Labels)
	if set == nil {
		set = map[string]string{}
	}
	set["io.kubernetes.service.name"], set["io.kubernetes.service.namespace"] = svc.Name, svc.Namespace
	return set
}

// advertising returns the advertisement that selects an outside address of the Service.
func (w *world) advertising(svc *corev1.Service) (string, bool) {
	class := svc.Spec.LoadBalancerClass
	set := labelsOf(svc)
	for i := range w.adverts {
		a := &w.adverts[i]
		balanced := svc.Spec.Type == corev1.ServiceTypeLoadBalancer && (class == nil || *class == classBGP) &&
			len(svc.Status.LoadBalancer.Ingress) > 0 && slices.Contains(a.addresses, "LoadBalancerIP")
		external := len(svc.Spec.ExternalIPs) > 0 && slices.Contains(a.addresses, "ExternalIP")
		if (balanced || external) && a.services.Matches(set) {
			return a.name, true
		}
	}
	return "", false
}

// announcing returns the L2 policies that announce the Service's load balancer addresses, or the class that says so.
func (w *world) announcing(svc *corev1.Service) ([]policy, bool) {
	class := svc.Spec.LoadBalancerClass
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || class != nil && *class != classL2 {
		return nil, false
	}
	var out []policy
	for _, p := range w.l2 {
		if len(svc.Status.LoadBalancer.Ingress) > 0 && p.services.Matches(labelsOf(svc)) {
			out = append(out, p)
		}
	}
	return out, len(out) > 0 || class != nil
}

// hasSession reports whether a node has BGP sessions: by its CiliumBGPNodeConfig, else by the cluster configurations; it
// is taken to have some where neither is at hand.
func (w *world) hasSession(n *corev1.Node) bool {
	switch {
	case len(w.peers) > 0:
		return w.peers[n.Name]
	case len(w.configs) > 0:
		return w.configured(n)
	}
	return true
}

func (w *world) configured(n *corev1.Node) bool {
	return slices.ContainsFunc(w.configs, func(s labels.Selector) bool { return s.Matches(labels.Set(n.Labels)) })
}
