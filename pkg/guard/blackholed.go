package guard

import "slices"

// Blackholed lists, sorted, the nodes that a Service's balancer sends to, or anybody may, and that have no usable endpoint of
// some of its ports: what ExistingBlackhole warns of. The time is that of the nodes and of the Service's endpoints.
func Blackholed(svc *ServiceFacts, ix Index) []string {
	if !svc.External || svc.Rotation.Nobody {
		return nil
	}
	j := &judgement{svc: svc, ix: ix, loss: &Loss{Flags: &Flags{}}, cover: Cover(svc)}
	if !j.cover.Has() {
		return nil
	}
	var out []string
	for n := range ix.Nodes() {
		if n.Ready && !n.leaves("") && j.surelySent(n, j.seat(n.Name)) && j.cover.emptyOn(n.Name) {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return out
}

// emptyOn reports whether a node has no usable endpoint of some port.
func (c *Coverage) emptyOn(node string) bool {
	return slices.ContainsFunc(c.ports, func(p portCoverage) bool { return p.local[node].state() == StateEmpty })
}
