package metallb

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// world is everything of MetalLB in one set of objects, read once for all Services.
type world struct {
	*installation

	nodes []*corev1.Node
	muted []string // nodes with a speaker that hangs, for all Services
}

// installation is what of it nodes have no part in, which change more often than the rest.
type installation struct {
	pools    []pool
	l2, bgp  []advertisement
	peers    []peer
	speakers speakers

	l2Of, bgpOf   map[types.NamespacedName][]status
	anyL2, anyBGP bool                      // a status of that kind is at hand, of whatever Service
	running       map[string][]netip.Prefix // by node, from FRRNodeState

	mu    sync.Mutex
	cache map[string]*eligibility // by the advertisements that apply, of the nodes that were looked at last
}

func newWorld(objects lbhooks.Objects, in *installation) *world {
	w := &world{installation: in, nodes: objects.Nodes()}
	w.muted = w.mute()
	return w
}

func newInstallation(objects lbhooks.Objects) *installation {
	w := &installation{speakers: speakersOf(objects), running: map[string][]netip.Prefix{}, cache: map[string]*eligibility{}}
	custom := func(group, kind string) []*unstructured.Unstructured {
		return objects.Custom(schema.GroupKind{Group: group, Kind: kind})
	}
	for _, u := range custom(group, "IPAddressPool") {
		w.pools = append(w.pools, poolOf(u))
	}
	w.l2 = advertisements(custom(group, "L2Advertisement"), w.pools)
	w.bgp = advertisements(custom(group, "BGPAdvertisement"), w.pools)
	for _, u := range custom(group, "BGPPeer") {
		if p, ok := peerOf(u); ok {
			w.peers = append(w.peers, p)
		}
	}
	w.l2Of, w.anyL2 = statuses(custom(group, "ServiceL2Status"))
	w.bgpOf, w.anyBGP = statuses(custom(group, "ServiceBGPStatus"))
	for _, u := range custom(frrGroup, "FRRNodeState") {
		if text, _, _ := unstructured.NestedString(u.Object, "status", "runningConfig"); text != "" {
			w.running[u.GetName()] = networks(text)
		}
	}
	return w
}

func advertisements(objects []*unstructured.Unstructured, pools []pool) []advertisement {
	var out []advertisement
	for _, u := range objects {
		if ad, ok := advertisementOf(u, pools); ok {
			out = append(out, ad)
		}
	}
	slices.SortFunc(out, func(a, b advertisement) int { return strings.Compare(a.name, b.name) })
	return out
}

func statuses(objects []*unstructured.Unstructured) (map[types.NamespacedName][]status, bool) {
	out := map[types.NamespacedName][]status{}
	for _, u := range objects {
		s := statusOf(u)
		out[s.service] = append(out[s.service], s)
	}
	return out, len(objects) > 0
}

// configured reports whether any advertisement is at hand; if none is, nobody can tell which nodes may announce.
func (w *world) configured() bool { return len(w.l2) > 0 || len(w.bgp) > 0 }

// eligibility says which nodes may announce by a set of advertisements. Nobody changes it.
type eligibility struct {
	l2, bgp []string                // sorted
	rest    lbhooks.Seat            // of the nodes that are not in seats
	seats   map[string]lbhooks.Seat // the smaller part, so that a Service costs little in a large cluster

	nodes    []*corev1.Node
	verdicts []verdict // of each node
}

// verdict is what is to say of one node.
type verdict struct {
	seat    lbhooks.Seat
	l2, bgp bool
}

// seatOf returns the seat of any node.
func (e *eligibility) seatOf(node string) lbhooks.Seat {
	i, ok := slices.BinarySearchFunc(e.nodes, node, func(n *corev1.Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return lbhooks.Seat{}
	}
	return e.verdicts[i].seat
}

// eligible returns who may announce by these advertisements; "all" stands for advertisements that are not at hand. A node that
// changes is judged anew and no other: labels change all the time somewhere in a large cluster, and seldom so that it matters.
func (w *world) eligible(l2, bgp []*advertisement, all bool) *eligibility {
	key := cacheKey(l2, bgp, all)
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.cache[key]
	switch {
	case !known:
		before = &eligibility{}
	case slices.Equal(before.nodes, w.nodes):
		return before
	}
	e := &eligibility{nodes: w.nodes, verdicts: make([]verdict, len(w.nodes))}
	same := known && len(before.nodes) == len(w.nodes)
	for i, n := range w.nodes {
		if i < len(before.nodes) && before.nodes[i] == n {
			e.verdicts[i] = before.verdicts[i]
			continue
		}
		e.verdicts[i] = w.verdict(n, l2, bgp, all)
		same = same && before.nodes[i].Name == n.Name && before.verdicts[i] == e.verdicts[i]
	}
	if same {
		e.l2, e.bgp, e.rest, e.seats = before.l2, before.bgp, before.rest, before.seats
	} else {
		e.gather()
	}
	w.cache[key] = e
	return e
}

// gather says of all nodes together what the verdicts say of each.
func (e *eligibility) gather() {
	fit := 0
	for i, v := range e.verdicts {
		if v.seat.Eligible {
			fit++
		}
		if v.l2 {
			e.l2 = append(e.l2, e.nodes[i].Name)
		}
		if v.bgp {
			e.bgp = append(e.bgp, e.nodes[i].Name)
		}
	}
	e.rest = lbhooks.Seat{In: lbhooks.No, Eligible: fit*2 > len(e.nodes)}
	if !e.rest.Eligible {
		e.rest.Why = "not selected by an advertisement, or no speaker that may announce"
	}
	e.seats = map[string]lbhooks.Seat{}
	for i, v := range e.verdicts {
		if v.seat.Eligible != e.rest.Eligible {
			e.seats[e.nodes[i].Name] = v.seat
		}
	}
}

func cacheKey(l2, bgp []*advertisement, all bool) string {
	var b strings.Builder
	for _, ad := range l2 {
		b.WriteString("l2/" + ad.name + ",")
	}
	for _, ad := range bgp {
		b.WriteString("bgp/" + ad.name + ",")
	}
	if all {
		b.WriteString("*")
	}
	return b.String()
}

// verdict judges one node by itself.
func (w *world) verdict(n *corev1.Node, l2, bgp []*advertisement, all bool) verdict {
	if why := w.barred(n); why != "" {
		return verdict{seat: lbhooks.Seat{In: lbhooks.No, Why: why}}
	}
	v := verdict{
		seat: lbhooks.Seat{In: lbhooks.No},
		l2:   all || slices.ContainsFunc(l2, func(ad *advertisement) bool { return ad.selects(n) }),
		bgp:  all || slices.ContainsFunc(bgp, func(ad *advertisement) bool { return ad.selects(n) && w.hasSession(n, ad.peers) }),
	}
	switch {
	case v.l2 || v.bgp:
		v.seat.Eligible = true
	case slices.ContainsFunc(bgp, func(ad *advertisement) bool { return ad.selects(n) }):
		v.seat.Why = "no BGPPeer selects it"
	default:
		v.seat.Why = "no advertisement selects it"
	}
	return v
}

// barred says why the node announces nothing at all: MetalLB speaker/layer2_controller.go and bgp_controller.go.
func (w *world) barred(n *corev1.Node) string {
	switch {
	case lbhooks.Virtual(n):
		return "a virtual node"
	case !w.speakers.ignoresLabel && lbhooks.ExcludedByPresence(n):
		return "it carries the label " + lbhooks.ExcludeLabel + ", which MetalLB obeys whatever its value"
	case networkUnavailable(n):
		return "its condition NetworkUnavailable is True"
	}
	return w.speakers.missing(n.Name)
}

// hasSession reports whether a BGPPeer selects the node, of those the advertisement names. Without BGPPeers at hand every
// node is taken to have a session.
func (w *world) hasSession(n *corev1.Node, names []string) bool {
	if len(w.peers) == 0 {
		return true
	}
	return slices.ContainsFunc(w.peers, func(p peer) bool {
		return p.selects(n) && (len(names) == 0 || slices.Contains(names, p.name))
	})
}

func networkUnavailable(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue
	})
}
