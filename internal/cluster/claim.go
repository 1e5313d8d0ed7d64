package cluster

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

// nodeClaim reads the claim on a node, nil when there is none. It is lenient: a claim that this version cannot read is
// still somebody's claim, so what cannot be read stays empty.
func nodeClaim(n *corev1.Node) *guard.Claim {
	value := n.Annotations[annotationClaim]
	if value == "" {
		return nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(value), &fields) != nil {
		return &guard.Claim{}
	}
	c, read := &guard.Claim{}, claim.Claim{}
	for name, into := range map[string]any{
		"v": &read.V, "run": &c.Run, "holder": &c.Holder, "nodes": &c.Nodes, "phase": &c.Phase,
		"set": &read.Set, "services": &read.Services, "free": &read.Free, "ended": &read.Ended,
	} {
		if raw, ok := fields[name]; ok && json.Unmarshal(raw, into) != nil {
			continue // of another shape in another version: left empty
		}
	}
	if read.V > claim.Version {
		return c // what it says of Services may mean something else
	}
	c.Labelled, c.Ended = slices.Contains(read.Set, claim.SetLabel), read.Ended != nil
	c.Services = claimedServices(&read)
	return c
}

// claimedServices states what a claim says of Services; nil when it says nothing.
func claimedServices(c *claim.Claim) map[guard.Key]guard.ClaimedService {
	var out map[guard.Key]guard.ClaimedService
	add := func(name string, s guard.ClaimedService) {
		namespace, name, ok := strings.Cut(name, "/")
		if !ok {
			return
		}
		if out == nil {
			out = map[guard.Key]guard.ClaimedService{}
		}
		out[guard.Key{Namespace: namespace, Name: name}] = s
	}
	for _, name := range c.Free {
		add(name, guard.ClaimedService{Released: true})
	}
	for name, s := range c.Services {
		add(name, guard.ClaimedService{
			Hook: s.Hook, Since: s.Since, Until: s.Until, ProofAt: s.ProofAt, Unproven: s.Unproven,
			// Versions that wrote no Since did not write Released either: there the proof says it.
			Released: s.Released || s.Since == nil && s.ProofAt != nil,
		})
	}
	return out
}
