package guard

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// blackholes finds nodes that are Empty already although something sends there, or may: a fault of today, not of the
// drain. Nodes of the loss and nodes that are leaving are somebody's work in progress and are left out.
func (j *judgement) blackholes() {
	if !j.cover.Has() || j.svc.Rotation.Nobody {
		return
	}
	certain, possible, unheard := j.emptyNodes()
	j.plan.Nodes = append(j.plan.Nodes, certain...)
	slices.SortFunc(j.plan.Nodes, func(a, b NodeRow) int { return strings.Compare(a.Name, b.Name) })
	if len(certain) > 0 {
		j.add(Finding{
			Code: ExistingBlackhole, Severity: Warn, Nodes: names(certain), Ports: portsOf(certain),
			Message: "already without a local endpoint: what arrives there is dropped (no reset, no 502, no log)",
			Advice:  "give each node that gets traffic an endpoint, or take it out of the balancer",
		})
	}
	if len(possible) > 0 {
		j.add(Finding{
			Code: ExistingBlackhole, Severity: Info, Nodes: possible,
			Message: "without a local endpoint: would drop what arrives there, if anything does",
			Advice:  "safedrain.dev/nodes on the Service says which nodes its balancer uses",
		})
	}
	if len(unheard) > 0 {
		j.add(Finding{
			Code: NotAdvertised, Severity: Info, Nodes: unheard,
			Message: "has endpoints, but nothing sends there",
		})
	}
}

// emptyNodes sorts the nodes that the loss leaves alone: without an endpoint of some port and certainly or probably
// sent to; without one and perhaps sent to; with one and certainly not sent to.
func (j *judgement) emptyNodes() (certain []NodeRow, possible, unheard []string) {
	for n := range j.ix.Nodes() {
		if j.loss.Nodes[n.Name] || n.leaves(j.loss.Run) || !n.Ready {
			continue
		}
		seat := j.seat(n.Name)
		ports, families, empty := j.cover.portsIn(n.Name, func(s State) bool { return s == StateEmpty })
		switch {
		case empty == 0:
			if seat.In == No && !seat.Eligible && !n.Virtual {
				unheard = append(unheard, n.Name)
			}
		case j.surelySent(n, seat):
			certain = append(certain, NodeRow{
				Name: n.Name, Before: StateEmpty, After: StateEmpty, InRotation: seat.In, Ports: ports, Families: families,
			})
		case seat.In == Unknown && n.candidate() && seat.Eligible:
			possible = append(possible, n.Name)
		}
	}
	return certain, possible, unheard
}

// surelySent reports whether a node gets traffic for the Service: from its balancer, or because node ports and external IPs
// answer on every node.
func (j *judgement) surelySent(n *NodeFacts, seat Seat) bool {
	open := j.svc.Type != corev1.ServiceTypeLoadBalancer
	return seat.In == Yes || seat.In == Unknown && open && n.candidate() && seat.Eligible
}

// locality finds endpoints that no node treats as its own, because their slice names no node.
func (j *judgement) locality() {
	unknown, never := map[string]bool{}, map[string]bool{}
	for i := range j.svc.Ports {
		for k := range j.svc.Ports[i].Endpoints {
			e := &j.svc.Ports[i].Endpoints[k]
			if e.Node != "" {
				continue
			}
			if e.Pod != "" || e.PodKey != (Key{}) || j.isNodeAddress(e) {
				never[e.Addr.String()] = true
			} else {
				unknown[e.Addr.String()] = true
			}
		}
	}
	if len(unknown) > 0 {
		j.add(Finding{
			Code: UnknownLocality, Severity: Warn,
			Message: fmt.Sprintf("%d endpoints name no node: nobody can tell where they run, and no node sends to them", len(unknown)),
			Advice:  "whoever writes the EndpointSlice has to set nodeName",
		})
	}
	if len(never) > 0 {
		j.add(Finding{
			Code: NeverLocal, Severity: Warn,
			Message: fmt.Sprintf("%d endpoints name no node in their EndpointSlice: kube-proxy treats them as local nowhere", len(never)),
			Advice:  "whoever writes the EndpointSlice has to set nodeName",
		})
	}
}

func (j *judgement) isNodeAddress(e *Endpoint) bool {
	addr := e.Addr.String()
	for n := range j.ix.Nodes() {
		if slices.Contains(n.Addresses, addr) {
			return true
		}
	}
	return false
}

// internal warns of clients that stay on the node: they lose the Service when its local endpoints are evicted. What
// ends with the node takes its clients along, so only evicted endpoints count.
func (j *judgement) internal() {
	var nodes []string
	for _, node := range j.lost {
		evicted := false
		for i := range j.cover.ports {
			for _, e := range j.cover.ports[i].local[node].usable() {
				evicted = evicted || j.loss.Evicted[e.Pod]
			}
		}
		if evicted {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return
	}
	j.add(Finding{
		Code: InternalLosesLocal, Severity: Warn, Nodes: nodes, Ports: j.lostPorts(),
		Message: "internalTrafficPolicy Local: clients that stay on the node lose the Service",
		Advice:  "pods of DaemonSets on the node cannot reach it until an endpoint is back",
	})
}

// goesWithNode names usable endpoints that no eviction ends: a DaemonSet's, a mirror pod's, or no pod's at all.
func (j *judgement) goesWithNode() {
	if j.loss.StayUp {
		return
	}
	var nodes []string
	for _, node := range j.lost {
		stays := false
		for i := range j.cover.ports {
			for _, e := range j.cover.ports[i].local[node].usable() {
				stays = stays || !j.loss.Evicted[e.Pod]
			}
		}
		if stays {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return
	}
	j.add(Finding{
		Code: GoesWithNode, Severity: Warn, Nodes: nodes,
		Message: "has endpoints there that no eviction ends: they serve until the node is switched off, and end with it",
		Advice:  "--stay-up, if the node goes on running",
	})
}

// isEndpoint reports whether a pod is a usable endpoint of the Service now.
func (j *judgement) isEndpoint(uid types.UID) bool {
	for i := range j.cover.ports {
		for _, l := range j.cover.ports[i].local {
			if slices.ContainsFunc(l.usable(), func(e Endpoint) bool { return e.Pod == uid && uid != "" }) {
				return true
			}
		}
	}
	return false
}

func names(rows []NodeRow) []string {
	out := make([]string, len(rows))
	for i := range rows {
		out[i] = rows[i].Name
	}
	return out
}

// portsOf returns the ports that all rows have in common as theirs; nil when they differ or concern every port.
func portsOf(rows []NodeRow) []string {
	for i := range rows {
		if !slices.Equal(rows[i].Ports, rows[0].Ports) {
			return nil
		}
	}
	return rows[0].Ports
}
