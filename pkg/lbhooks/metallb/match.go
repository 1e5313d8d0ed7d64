package metallb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Annotations of MetalLB's controller, and the prefix that older versions used.
const (
	annotationPool     = "/ip-allocated-from-pool"
	annotationSharedIP = "/allow-shared-ip"
	oldGroup           = "metallb.universe.tf"
)

// match is what MetalLB has to do with one Service. An empty reason means nothing.
type match struct {
	w       *world
	svc     *corev1.Service
	reason  string
	pool    string
	l2      []*advertisement
	bgp     []*advertisement
	l2Has   []status
	bgpHas  []status
	byL2    bool // it is announced, or would be, by L2
	byBGP   bool
	noteL2  string
	address []netip.Addr
}

func (w *world) match(svc *corev1.Service) *match {
	key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	m := &match{w: w, svc: svc, address: lbhooks.Addresses(svc), l2Has: w.l2Of[key], bgpHas: w.bgpOf[key]}
	m.claim()
	if m.reason == "" {
		return m
	}
	m.l2 = applying(w.l2, m.pool, svc)
	m.bgp = applying(w.bgp, m.pool, svc)
	if m.l2 != nil && annotation(svc, annotationSharedIP) != "" && slices.ContainsFunc(m.l2, func(a *advertisement) bool { return len(a.services) > 0 }) {
		// MetalLB v0.16 speaker/layer2_controller.go ShouldAnnounce.
		m.l2, m.noteL2 = nil, "allow-shared-ip rules out L2Advertisements with serviceSelectors"
	}
	m.byL2 = len(m.l2Has) > 0 || len(m.l2) > 0
	// An advertisement without any peer announces nothing; it is the only way only if there is no other.
	m.byBGP = len(m.bgpHas) > 0 || (len(m.bgp) > 0 && (len(w.peers) > 0 || !m.byL2))
	if !m.byBGP {
		m.bgp = nil
	}
	return m
}

// claim finds the reason why the Service is MetalLB's, and its pool.
func (m *match) claim() {
	m.pool = annotation(m.svc, annotationPool)
	for i := range m.w.pools {
		if p := &m.w.pools[i]; m.pool == "" && len(m.address) > 0 && p.contains(m.address[0]) {
			m.pool = p.name
		}
	}
	switch {
	case len(m.bgpHas) > 0:
		m.reason = "ServiceBGPStatus names the Service"
	case len(m.l2Has) > 0:
		m.reason = "ServiceL2Status names the Service"
	case !m.classFits():
	case annotation(m.svc, annotationPool) != "":
		m.reason = fmt.Sprintf("annotation %s%s: %s", group, annotationPool, m.pool)
	case m.pool != "" && m.svc.Spec.LoadBalancerClass == nil:
		m.reason = fmt.Sprintf("%s is an address of IPAddressPool %s", m.address[0], m.pool)
	}
}

// classFits follows MetalLB's --lb-class: without it only Services without a class, with it only those of that class.
func (m *match) classFits() bool {
	class := m.svc.Spec.LoadBalancerClass
	if !m.w.speakers.known {
		return true
	}
	if class == nil || m.w.speakers.class == nil {
		return class == nil && (m.w.speakers.class == nil || *m.w.speakers.class == "")
	}
	return *class == *m.w.speakers.class
}

func annotation(svc *corev1.Service, name string) string {
	if v := svc.Annotations[group+name]; v != "" {
		return v
	}
	return svc.Annotations[oldGroup+name]
}

func applying(all []advertisement, pool string, svc *corev1.Service) []*advertisement {
	var out []*advertisement
	for i := range all {
		if all[i].advertises(pool, svc) {
			out = append(out, &all[i])
		}
	}
	return out
}

// hook is the name of the hook that fronts the Service: of both kinds together it is metallb-bgp.
func (m *match) hook() string {
	if m.byBGP {
		return BGP
	}
	return L2
}

func (m *match) rotation(objects lbhooks.Objects) lbhooks.Rotation {
	r := lbhooks.Rotation{
		Hook: m.hook(), Reason: m.reason, Removal: lbhooks.RemovalLabel, Provable: true, Follows: true, FollowsServing: true, ZoneBlind: true,
	}
	switch {
	case !m.byL2 && !m.byBGP && m.w.configured():
		r.Rest = lbhooks.Seat{In: lbhooks.No, Why: fmt.Sprintf("no advertisement applies to pool %s", m.pool)}
		r.Evidence = strings.TrimSuffix(r.Rest.Why+"; "+m.noteL2, "; ")
	case !m.byL2 && !m.byBGP:
		r.Provable = false
		r.Rest = lbhooks.Seat{In: lbhooks.Unknown, Eligible: true}
		r.Evidence = "no advertisement and no status object of MetalLB at hand"
	default:
		m.fill(&r, objects)
	}
	if m.w.speakers.ignoresLabel {
		r.Removal, r.Provable = lbhooks.RemovalNone, false
		r.Evidence += "; speakers run with --ignore-exclude-lb: the label does nothing"
	}
	return r
}

// fill sets the seats of a Service that is advertised, and the moves.
func (m *match) fill(r *lbhooks.Rotation, objects lbhooks.Objects) {
	e := m.w.eligible(m.l2, m.bgp, !m.w.configured())
	serving := sync.OnceValue(func() map[string]bool {
		return lbhooks.NodesWith(objects.Slices(m.svc.Namespace, m.svc.Name), canServe)
	})
	r.Rest, r.Shared, r.Seats = e.rest, e.seats, map[string]lbhooks.Seat{}
	var evidence []string
	if m.byBGP {
		in, why := m.announcingBGP(e, serving)
		m.seat(r, e, in, why)
		evidence = append(evidence, said(why, in))
	}
	if m.byL2 {
		in, why := m.announcingL2(e, serving)
		m.seat(r, e, in, why)
		evidence = append(evidence, said(why, in))
		if slices.ContainsFunc(in, objects.Leaving) {
			r.Moves = m.moves(in, m.candidates(e.l2, serving(), objects), objects)
		}
	}
	if len(m.w.muted) > 0 {
		m.seatMute(r, e, m.local(m.w.muted, serving()))
	}
	if !m.w.speakers.known {
		evidence = append(evidence, "no speaker pods at hand: every node taken to run one")
	}
	if !m.w.configured() {
		evidence = append(evidence, "no advertisements at hand: every node taken as selected")
	}
	r.Evidence = strings.Join(evidence, "; ")
}

func (m *match) seat(r *lbhooks.Rotation, e *eligibility, in []string, why string) {
	for _, node := range in {
		seat := e.seatOf(node)
		seat.In, seat.Why = lbhooks.Yes, strings.TrimSuffix(why+"; "+seat.Why, "; ")
		r.Seats[node] = seat
	}
}

// seatMute seats nodes that may still be announced although no status names them.
func (m *match) seatMute(r *lbhooks.Rotation, e *eligibility, nodes []string) {
	for _, node := range nodes {
		if _, seated := r.Seats[node]; !seated {
			seat := e.seatOf(node)
			seat.In, seat.Why = lbhooks.Yes, m.w.speakers.missing(node)+": what it announced may stand"
			r.Seats[node] = seat
		}
	}
}

func said(why string, nodes []string) string {
	if len(nodes) == 0 {
		return why + ": no node"
	}
	if len(nodes) > 5 {
		return fmt.Sprintf("%s: %s +%d", why, strings.Join(nodes[:5], ", "), len(nodes)-5)
	}
	return why + ": " + strings.Join(nodes, ", ")
}

// announcingL2 returns the nodes that announce by L2 now: those that a status names, or else the winner of the election. A
// Service without a status may be announced all the same (seen with MetalLB v0.15.3): after a partition its speaker may
// write none until something changes.
func (m *match) announcingL2(e *eligibility, serving func() map[string]bool) (nodes []string, why string) {
	if len(m.l2Has) > 0 {
		return nodesNamed(m.l2Has), "ServiceL2Status"
	}
	if len(m.address) > 0 {
		if leader := elect(m.local(e.l2, serving()), m.address[0], m.score); leader != "" {
			nodes = []string{leader}
		}
	}
	return nodes, "predicted by MetalLB's election, " + m.noStatus("ServiceL2Status", m.w.anyL2)
}

// announcingBGP returns the nodes that announce by BGP now: those that a status names or whose FRR runs the prefix. A
// Service without any status may be announced all the same, as by L2: then every eligible node with an endpoint counts
// whose FRR shows nothing.
func (m *match) announcingBGP(e *eligibility, serving func() map[string]bool) (nodes []string, why string) {
	nodes = nodesNamed(m.bgpHas)
	for node, prefixes := range m.w.running {
		if _, ok := covering(prefixes, m.address); ok {
			nodes = append(nodes, node)
		}
	}
	var seen []string
	if len(m.bgpHas) > 0 {
		seen = append(seen, "ServiceBGPStatus")
	}
	if len(m.w.running) > 0 {
		seen = append(seen, "FRRNodeState")
	}
	if len(m.bgpHas) == 0 {
		shown := func(n string) bool { _, runs := m.w.running[n]; return runs }
		predicted := slices.DeleteFunc(slices.Clone(m.local(e.bgp, serving())), shown)
		if len(predicted) > 0 || len(seen) == 0 {
			seen = append(seen, "predicted by MetalLB's rules, "+m.noStatus("ServiceBGPStatus", m.w.anyBGP))
		}
		nodes = append(nodes, predicted...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), strings.Join(seen, ", ")
}

// noStatus says whether the Service alone lacks a status, or none is at hand.
func (m *match) noStatus(kind string, others bool) string {
	if others {
		return "the Service has no " + kind
	}
	return "no " + kind + " at hand"
}

// local narrows candidates to what the traffic policy asks for: of policy Local the nodes with a usable endpoint, of
// policy Cluster all, as long as there is one anywhere.
func (m *match) local(candidates []string, serving map[string]bool) []string {
	if m.svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		if len(serving) == 0 {
			return nil
		}
		return candidates
	}
	return slices.DeleteFunc(slices.Clone(candidates), func(n string) bool { return !serving[n] })
}

// candidates are the nodes that can take over: those that stay. An address moves when the label is set, before any
// endpoint goes, so of policy Cluster the endpoints on leaving nodes still count.
func (m *match) candidates(eligible []string, serving map[string]bool, objects lbhooks.Objects) []string {
	return slices.DeleteFunc(slices.Clone(m.local(eligible, serving)), objects.Leaving)
}

// moves predicts where the addresses go that a leaving node announces; all of a Service's addresses go together.
func (m *match) moves(announcing, candidates []string, objects lbhooks.Objects) []lbhooks.Move {
	var out []lbhooks.Move
	for _, from := range announcing {
		if !objects.Leaving(from) || len(m.address) == 0 {
			continue
		}
		to := elect(candidates, m.address[0], m.score)
		for _, a := range m.address {
			out = append(out, lbhooks.Move{Address: a.String(), From: from, To: to})
		}
	}
	return out
}

// score sums the preferences of the advertisements that apply.
func (m *match) score(node string) int64 {
	n := lbhooks.NodeOf(m.w.nodes, node)
	if n == nil {
		return 0
	}
	var total int64
	for _, ad := range m.l2 {
		total += ad.score(n)
	}
	return total
}
