package guard

import (
	"cmp"
	"slices"
)

// Coverage is one Service on all nodes: per port and family what each node has now, and what would be left.
type Coverage struct {
	ports []portCoverage
}

// portCoverage is one port in one family.
type portCoverage struct {
	port  *Port
	local map[string]localEndpoints // by node; nodes without a usable endpoint are absent
	left  []Endpoint                // endpoints that stay, wherever they are; one per address, worst copy
}

type localEndpoints struct {
	ready, terminating []Endpoint
}

func (l localEndpoints) state() State {
	switch {
	case len(l.ready) > 0:
		return StateServing
	case len(l.terminating) > 0:
		return StateTerminating
	}
	return StateEmpty
}

func (l localEndpoints) usable() []Endpoint {
	if len(l.ready) > 0 {
		return l.ready
	}
	return l.terminating
}

// Cover computes the coverage of one Service in time and memory of its endpoints. Ports that have no usable endpoint
// anywhere are left out: kube-proxy rejects their connections on every node alike, which no drain changes.
func Cover(svc *ServiceFacts) Coverage {
	var c Coverage
	for i := range svc.Ports {
		pc := coverPort(&svc.Ports[i])
		if len(pc.local) > 0 {
			c.ports = append(c.ports, pc)
		}
	}
	return c
}

func coverPort(p *Port) portCoverage {
	pc := portCoverage{port: p, local: map[string]localEndpoints{}}
	for _, e := range onePerAddress(p.Endpoints, kubeProxyPrefers) {
		if e.Node == "" {
			continue
		}
		l := pc.local[e.Node]
		switch {
		case e.Ready:
			l.ready = append(l.ready, e)
		case e.Serving && e.Terminating:
			l.terminating = append(l.terminating, e)
		default:
			continue
		}
		pc.local[e.Node] = l
	}
	for _, e := range onePerAddress(p.Endpoints, worstCopy) {
		if e.Node != "" && e.stays() {
			pc.left = append(pc.left, e)
		}
	}
	return pc
}

// State returns the worst state of the Service's ports on a node, and how many Ready endpoints the node has.
func (c *Coverage) State(node string) (State, int) {
	if len(c.ports) == 0 {
		return StateEmpty, 0
	}
	worst := StateServing
	var ready []Endpoint
	for i := range c.ports {
		l := c.ports[i].local[node]
		if s := l.state(); stateRank[s] < stateRank[worst] {
			worst = s
		}
		ready = append(ready, l.ready...)
	}
	return worst, distinct(ready)
}

// Nodes lists, sorted, the nodes with a usable endpoint of at least one port.
func (c *Coverage) Nodes() []string {
	seen := map[string]bool{}
	for i := range c.ports {
		for n := range c.ports[i].local {
			seen[n] = true
		}
	}
	return sortedKeys(seen)
}

// Has reports whether the Service has a usable endpoint anywhere.
func (c *Coverage) Has() bool { return len(c.ports) > 0 }

// stateRank orders states from nothing to serving.
var stateRank = map[State]int{StateEmpty: 0, StateTerminating: 1, StateServing: 2}

// portsIn lists the ports of a Service for which pick holds on a node; nil when it holds for all of them, so that a
// reader sees ports only where they differ.
func (c *Coverage) portsIn(node string, pick func(State) bool) (ports, families []string, count int) {
	familySeen, familyAll := map[string]bool{}, map[string]bool{}
	for i := range c.ports {
		p := c.ports[i].port
		familyAll[string(p.Family)] = true
		if !pick(c.ports[i].local[node].state()) {
			continue
		}
		count++
		familySeen[string(p.Family)] = true
		ports = append(ports, p.title())
	}
	if count == len(c.ports) {
		return nil, nil, count
	}
	if len(familySeen) < len(familyAll) {
		families = sortedKeys(familySeen)
	}
	slices.Sort(ports)
	return slices.Compact(ports), families, count
}

// title names a port as people do: "http/TCP", or "TCP" when it has no name.
func (p *Port) title() string {
	if p.Name == "" {
		return string(p.Protocol)
	}
	return p.Name + "/" + string(p.Protocol)
}

// distinct counts endpoints, one for each pod, or for each address where no pod stands behind it.
func distinct(endpoints []Endpoint) int {
	seen := make(map[string]struct{}, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		seen[cmp.Or(string(e.Pod), e.Addr.String())] = struct{}{}
	}
	return len(seen)
}
