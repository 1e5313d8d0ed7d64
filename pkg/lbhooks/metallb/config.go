package metallb

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// advertisement is an L2Advertisement or a BGPAdvertisement, its selectors parsed.
type advertisement struct {
	name      string
	allPools  bool // neither names nor selectors: every pool, MetalLB internal/config setL2AdvertisementsToPools
	pools     map[string]bool
	nodes     []labels.Selector // any of them; none: every node
	services  []labels.Selector // any of them; none: every Service of the pool. MetalLB v0.16
	preferred []preference
	peers     []string // BGP: names of BGPPeers; none: all
}

// preference is one preferredNodeSelectors entry, MetalLB v0.16.2.
type preference struct {
	weight   int64
	selector labels.Selector
}

// advertisementSpec is the part of both kinds that decides who announces.
type advertisementSpec struct {
	IPAddressPools         []string               `json:"ipAddressPools"`
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
	ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors"`
	PreferredNodeSelectors []struct {
		Weight     int64                `json:"weight"`
		Preference metav1.LabelSelector `json:"preference"`
	} `json:"preferredNodeSelectors"`
	Peers []string `json:"peers"`
}

// advertisementOf parses one object. MetalLB refuses a configuration with a bad selector, so such an object selects nothing.
func advertisementOf(u *unstructured.Unstructured, pools []pool) (advertisement, bool) {
	var spec advertisementSpec
	if !decodeSpec(u, &spec) {
		return advertisement{}, false
	}
	ad := advertisement{
		name: u.GetName(), pools: map[string]bool{}, peers: spec.Peers,
		allPools: len(spec.IPAddressPools) == 0 && len(spec.IPAddressPoolSelectors) == 0,
	}
	for _, name := range spec.IPAddressPools {
		ad.pools[name] = true
	}
	poolSelectors, ok1 := selectors(spec.IPAddressPoolSelectors)
	nodes, ok2 := selectors(spec.NodeSelectors)
	services, ok3 := selectors(spec.ServiceSelectors)
	if !ok1 || !ok2 || !ok3 {
		return advertisement{}, false
	}
	ad.nodes, ad.services = nodes, services
	for _, p := range pools {
		if anyMatches(poolSelectors, p.labels) {
			ad.pools[p.name] = true
		}
	}
	for _, p := range spec.PreferredNodeSelectors {
		sel, err := metav1.LabelSelectorAsSelector(&p.Preference)
		if err != nil {
			return advertisement{}, false
		}
		ad.preferred = append(ad.preferred, preference{weight: p.Weight, selector: sel})
	}
	return ad, true
}

// advertises reports whether the advertisement applies to a Service of that pool.
func (a *advertisement) advertises(pool string, svc *corev1.Service) bool {
	if !a.allPools && !a.pools[pool] {
		return false
	}
	return len(a.services) == 0 || anyMatches(a.services, labels.Set(svc.Labels))
}

// selects reports whether the advertisement lets the node announce.
func (a *advertisement) selects(n *corev1.Node) bool {
	return len(a.nodes) == 0 || anyMatches(a.nodes, labels.Set(n.Labels))
}

// score is the weight that the advertisement's preferences give a node that it selects.
func (a *advertisement) score(n *corev1.Node) int64 {
	if !a.selects(n) {
		return 0
	}
	var total int64
	for _, p := range a.preferred {
		if p.selector.Matches(labels.Set(n.Labels)) {
			total += p.weight
		}
	}
	return total
}

// peer is a BGPPeer: the nodes that keep a session with it.
type peer struct {
	name  string
	nodes []labels.Selector
}

func peerOf(u *unstructured.Unstructured) (peer, bool) {
	var spec advertisementSpec
	if !decodeSpec(u, &spec) {
		return peer{}, false
	}
	nodes, ok := selectors(spec.NodeSelectors)
	return peer{name: u.GetName(), nodes: nodes}, ok
}

func (p *peer) selects(n *corev1.Node) bool {
	return len(p.nodes) == 0 || anyMatches(p.nodes, labels.Set(n.Labels))
}

// pool is an IPAddressPool.
type pool struct {
	name     string
	labels   labels.Set
	prefixes []netip.Prefix
	ranges   [][2]netip.Addr
}

func poolOf(u *unstructured.Unstructured) pool {
	p := pool{name: u.GetName(), labels: u.GetLabels()}
	addresses, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "addresses")
	for _, text := range addresses {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			p.prefixes = append(p.prefixes, prefix.Masked())
			continue
		}
		from, to, _ := strings.Cut(text, "-")
		low, err1 := netip.ParseAddr(strings.TrimSpace(from))
		high, err2 := netip.ParseAddr(strings.TrimSpace(to))
		if err1 == nil && err2 == nil {
			p.ranges = append(p.ranges, [2]netip.Addr{low, high})
		}
	}
	return p
}

func (p *pool) contains(a netip.Addr) bool {
	if slices.ContainsFunc(p.prefixes, func(x netip.Prefix) bool { return x.Contains(a) }) {
		return true
	}
	return slices.ContainsFunc(p.ranges, func(r [2]netip.Addr) bool {
		return r[0].BitLen() == a.BitLen() && r[0].Compare(a) <= 0 && a.Compare(r[1]) <= 0
	})
}

// decodeSpec reads a spec by way of JSON, which takes numbers however the object was decoded.
func decodeSpec(u *unstructured.Unstructured, into any) bool {
	spec, found, err := unstructured.NestedFieldNoCopy(u.Object, "spec")
	if err != nil || !found {
		return err == nil
	}
	raw, err := json.Marshal(spec)
	return err == nil && json.Unmarshal(raw, into) == nil
}

func selectors(in []metav1.LabelSelector) ([]labels.Selector, bool) {
	out := make([]labels.Selector, 0, len(in))
	for i := range in {
		sel, err := metav1.LabelSelectorAsSelector(&in[i])
		if err != nil {
			return nil, false
		}
		out = append(out, sel)
	}
	return out, true
}

func anyMatches(sels []labels.Selector, set labels.Set) bool {
	return slices.ContainsFunc(sels, func(s labels.Selector) bool { return s.Matches(set) })
}

// networks returns the prefixes that FRR originates, from the network lines of its running configuration. Prefix lists
// are not looked at: those of what is received contain everything.
func networks(runningConfig string) []netip.Prefix {
	var out []netip.Prefix
	for line := range bytes.Lines([]byte(runningConfig)) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != "network" {
			continue
		}
		// The default route covers every address and says nothing about this one.
		if p, err := netip.ParsePrefix(string(fields[1])); err == nil && p.Bits() > 0 {
			out = append(out, p.Masked())
		}
	}
	return out
}

// covering returns the first prefix that contains one of the addresses: the host route, or the aggregate of an
// aggregationLength, which brings the traffic just the same.
func covering(prefixes []netip.Prefix, addresses []netip.Addr) (netip.Prefix, bool) {
	for _, a := range addresses {
		for _, p := range prefixes {
			if p.Contains(a) {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}
