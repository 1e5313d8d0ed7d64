package guard

// SentTo reports whether a balancer sends to a node for the Service, or may.
func (s *ServiceFacts) SentTo(n *NodeFacts) bool {
	if !s.External || s.Rotation.Nobody {
		return false
	}
	seat := s.Rotation.Seat(n.Name)
	return seat.In == Yes || seat.In == Unknown && n.eligible(seat)
}

// Spare reports whether the Service has endpoints on nodes that nobody sends to.
func (s *ServiceFacts) Spare(ix Index) bool {
	sent := map[string]bool{}
	for i := range s.Ports {
		for k := range s.Ports[i].Endpoints {
			e := &s.Ports[i].Endpoints[k]
			if e.Node == "" || e.Pod == "" || e.Terminating {
				continue
			}
			to, known := sent[e.Node]
			if !known {
				n, there := ix.Node(e.Node)
				to = there && s.SentTo(n)
				sent[e.Node] = to
			}
			if !to {
				return true
			}
		}
	}
	return false
}
