package guardtest

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/proxy"

	"github.com/safedrain/safedrain/pkg/guard"
)

// choice is what a proxy uses for one port of the Service under a Local policy: addresses with ports, sorted.
type choice map[portKey][]string

type portKey struct {
	name     string
	protocol corev1.Protocol
	family   corev1.IPFamily
}

var families = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

// policies says how kube-proxy reads the traffic policies of the Service.
type policies struct{ external, internal bool }

// proxyPorts asks kube-proxy's own code for the ports of the scene's Service in one family. The two lines of selection
// are those of its informers (cmd/kube-proxy/app/server.go).
func proxyPorts(s *scene, family corev1.IPFamily) proxy.ServicePortMap {
	ports := proxy.ServicePortMap{}
	if _, other := s.service.Labels[labelProxyName]; other || s.service.Spec.ClusterIP == corev1.ClusterIPNone {
		return ports
	}
	tracker := proxy.NewServiceChangeTracker(family, nil, nil)
	tracker.Update(nil, s.service)
	ports.Update(tracker)
	return ports
}

// proxyChoice asks kube-proxy's own code, on a node, what it uses for each port. It returns false when kube-proxy could
// also answer otherwise: its cache goes through the slices in the random order of a map.
func proxyChoice(s *scene, node string) (used choice, read policies, certain bool) {
	used, certain = choice{}, true
	for _, family := range families {
		ports := proxyPorts(s, family)
		if len(ports) == 0 {
			continue
		}
		all := proxyEndpoints(s.slices, family, node)
		alone := eachAlone(s, family, node)
		for name, info := range ports {
			read = policies{external: info.ExternalPolicyLocal(), internal: info.InternalPolicyLocal()}
			_, local, _, _ := proxy.CategorizeEndpoints(all[name], info, node, nil)
			used[portKey{name.Port, name.Protocol, family}] = sortedStrings(local)
			certain = certain && sameInAnyOrder(alone, name)
		}
	}
	return used, read, certain
}

func sortedStrings(endpoints []proxy.Endpoint) []string {
	out := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		out = append(out, e.String())
	}
	slices.Sort(out)
	return out
}

// proxyEndpoints feeds slices into kube-proxy's cache.
func proxyEndpoints(of []*discoveryv1.EndpointSlice, family corev1.IPFamily, node string) proxy.EndpointsMap {
	endpoints := proxy.EndpointsMap{}
	tracker := proxy.NewEndpointsChangeTracker(family, node, nil, nil)
	for _, sl := range of {
		if _, headless := sl.Labels[corev1.IsHeadlessService]; !headless {
			tracker.EndpointSliceUpdate(sl, false)
		}
	}
	endpoints.Update(tracker)
	return endpoints
}

// eachAlone has kube-proxy's cache read every slice alone.
func eachAlone(s *scene, family corev1.IPFamily, node string) []proxy.EndpointsMap {
	var alone []proxy.EndpointsMap
	for _, sl := range relevant(s, family) {
		alone = append(alone, proxyEndpoints([]*discoveryv1.EndpointSlice{sl}, family, node))
	}
	return alone
}

// sameInAnyOrder reports whether every order of the slices gives kube-proxy's cache the same endpoints for a port. Copies
// from several slices are joined as it joins them (addEndpoints): one that does not terminate replaces another.
func sameInAnyOrder(alone []proxy.EndpointsMap, name proxy.ServicePortName) bool {
	type facts struct{ local, ready, serving, terminating bool }
	var first map[string]facts
	same := true
	permute(alone, func(order []proxy.EndpointsMap) {
		merged := map[string]facts{}
		for _, one := range order {
			for _, e := range one[name] {
				f := facts{e.IsLocal(), e.IsReady(), e.IsServing(), e.IsTerminating()}
				if _, ok := merged[e.String()]; !ok || !f.terminating {
					merged[e.String()] = f
				}
			}
		}
		if first == nil {
			first = merged
		}
		same = same && maps.Equal(first, merged)
	})
	return same
}

func relevant(s *scene, family corev1.IPFamily) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, sl := range s.slices {
		_, headless := sl.Labels[corev1.IsHeadlessService]
		service := types.NamespacedName{Namespace: sl.Namespace, Name: sl.Labels[discoveryv1.LabelServiceName]}
		if !headless && string(sl.AddressType) == string(family) &&
			service == (types.NamespacedName{Namespace: s.service.Namespace, Name: s.service.Name}) {
			out = append(out, sl)
		}
	}
	return out
}

// permute calls f with every order of the elements.
func permute[T any](of []T, f func([]T)) {
	var step func(int)
	step = func(k int) {
		if k >= len(of)-1 {
			f(of)
			return
		}
		for i := k; i < len(of); i++ {
			of[k], of[i] = of[i], of[k]
			step(k + 1)
			of[k], of[i] = of[i], of[k]
		}
	}
	step(0)
}

// hostPort writes an endpoint as kube-proxy does.
func hostPort(e guard.Endpoint) string { return netip.AddrPortFrom(e.Addr, e.Port).String() }
