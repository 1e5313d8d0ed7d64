package guard

import "net/netip"

// Usable returns what kube-proxy on that node would use for one port under a Local policy, and the state that follows:
// the local Ready endpoints; if there are none, the local ones that serve while they terminate; else nothing.
//
// Source: CategorizeEndpoints in k8s.io/kubernetes/pkg/proxy/topology.go and addEndpoints in endpointslicecache.go.
func Usable(endpoints []Endpoint, node string) (State, []Endpoint) {
	var ready, terminating []Endpoint
	for _, e := range onePerAddress(endpoints, kubeProxyPrefers) {
		switch {
		case node == "" || e.Node != node:
		case e.Ready:
			ready = append(ready, e)
		case e.Serving && e.Terminating:
			terminating = append(terminating, e)
		}
	}
	switch {
	case len(ready) > 0:
		return StateServing, ready
	case len(terminating) > 0:
		return StateTerminating, terminating
	}
	return StateEmpty, nil
}

// stays reports whether an endpoint counts as left after a drain: Ready in truth and not on its way out. A terminating
// endpoint never counts, whatever publishNotReadyAddresses makes its slice say.
func (e *Endpoint) stays() bool { return e.Ready && e.Serving && !e.Terminating }

// onePerAddress keeps one copy of each address and port, in the order of their first copies; prefer says whether the
// second copy is to be kept instead of the first.
func onePerAddress(endpoints []Endpoint, prefer func(have, other *Endpoint) bool) []Endpoint {
	seen := make(map[netip.AddrPort]int, len(endpoints))
	kept := make([]Endpoint, 0, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		at := netip.AddrPortFrom(e.Addr, e.Port)
		j, ok := seen[at]
		switch {
		case !ok:
			seen[at] = len(kept)
			kept = append(kept, *e)
		case prefer(&kept[j], e):
			kept[j] = *e
		}
	}
	return kept
}

// kubeProxyPrefers keeps the last copy that does not terminate: the pod network may have given the address of a dying pod
// to a new one. Between slices kube-proxy's order is random, so there copies that disagree otherwise have no right answer.
func kubeProxyPrefers(_, other *Endpoint) bool { return !other.Terminating }

// worstCopy keeps the copy that promises least, so that what is left is never overstated.
func worstCopy(have, other *Endpoint) bool { return have.stays() && !other.stays() }
