package azure

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// entry is one backend of a pool or of a rule's health: a network interface, an address, or both.
type entry struct{ nic, address string }

// is reports whether an entry is the machine; known is false when nothing in it can tell: a network interface that is no
// scale set's does not name its machine, and its address is not given.
func (e entry) is(m machine) (same, known bool) {
	switch {
	case strings.HasPrefix(e.nic, m.id+"/"):
		return true, true
	case e.address != "" && slices.Contains(m.addresses, e.address):
		return true, true
	case e.address != "" && len(m.addresses) > 0:
		return false, true
	}
	return false, strings.Contains(e.nic, "/virtualmachinescalesets/") || m.scaleSet && e.nic != ""
}

// Prove makes one observation: the node is in no backend pool of the Service's rules, or every rule's probe finds it down;
// and each rule has another backend that is up. When all are down, Azure does not stop sending everywhere.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.kube == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, "there is no API server to ask", nil)
	}
	m, ok := machineOf(t.Node)
	if !ok {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, fmt.Sprintf("node %q has no virtual machine of Azure in its providerID (%q)", t.Node.Name, t.Node.Spec.ProviderID), nil)
	}
	proof, err := h.look(ctx, t, m)
	if isNotFound(err) {
		h.forget(t.Service)
	}
	return proof, err
}

func (h *Hook) look(ctx context.Context, t lbhooks.Target, m machine) (lbhooks.Proof, error) {
	b, err := h.balancer(ctx, t, m)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	pooled, err := h.members(ctx, b)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	rules, err := h.health(ctx, b)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	return h.judge(b, pooled, rules, m), nil
}

// judge puts together what the pools and the rules' health say of the machine.
func (h *Hook) judge(b *balancer, pooled []entry, rules [][]row, m machine) lbhooks.Proof {
	addresses := map[string]string{} // of network interfaces, as far as the health tells them
	isDown, isListed, others := true, false, -1
	for _, rule := range rules {
		healthy := 0
		for _, r := range rule {
			addresses[r.nic] = r.address
			same, _ := r.is(m)
			switch {
			case same:
				isListed = true
				isDown = isDown && r.down
			case r.up:
				healthy++
			}
		}
		if others < 0 || healthy < others {
			others = healthy
		}
	}
	member, unknown := false, 0
	for _, e := range pooled {
		if e.address == "" {
			e.address = addresses[e.nic]
		}
		same, known := e.is(m)
		member = member || same
		if !known {
			unknown++
		}
	}
	return h.conclude(fmt.Sprintf("%s: ", b.rules[0].balancer), finding{member, isListed, isListed && isDown, unknown, max(others, 0)})
}

// finding is what one observation came to.
type finding struct {
	member  bool // in a pool
	listed  bool // in the health of a rule
	down    bool // down in the health of every rule that lists it
	unknown int  // backends of which nobody can tell whose they are
	others  int  // other backends that are up, at the rule that has the fewest
}

func (h *Hook) conclude(where string, f finding) lbhooks.Proof {
	state := "not in a backend pool"
	switch {
	case f.member:
		state = "in a backend pool"
	case f.unknown > 0:
		state = fmt.Sprintf("%d backends that name no machine", f.unknown)
	}
	switch {
	case f.down:
		state += ", down"
	case f.listed:
		state += ", up"
	}
	p := lbhooks.Proof{Evidence: fmt.Sprintf("%s%s; %d others up", where, state, f.others)}
	switch {
	case f.others == 0:
		p.Evidence += ": without one that is up nothing is proven"
	case f.down, !f.member && !f.listed && f.unknown == 0:
		settle := h.settle()
		p.Out, p.Settle = true, &settle
	}
	return p
}

// members reads the backend pools: network interfaces by their IP configurations, and addresses.
func (h *Hook) members(ctx context.Context, b *balancer) ([]entry, error) {
	clients, err := h.api.in(b.subscription)
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, pool := range b.pools {
		answer, err := clients.NewLoadBalancerBackendAddressPoolsClient().Get(ctx, pool.group, pool.balancer, pool.name, nil)
		if err != nil {
			return nil, failed(ctx, actionPools, pool.id, err)
		}
		if answer.Properties != nil {
			out = append(out, entriesOf(answer.Properties)...)
		}
	}
	return out, nil
}

// entriesOf lists what a pool tells of its backends, each once: an address that has a network interface is listed again among
// the IP configurations.
func entriesOf(pool *armnetwork.BackendAddressPoolPropertiesFormat) []entry {
	seen := map[string]bool{}
	var out []entry
	for _, a := range pool.LoadBalancerBackendAddresses {
		if a == nil || a.Properties == nil {
			continue
		}
		e := entry{strings.ToLower(idOf(a.Properties.NetworkInterfaceIPConfiguration)), ptr.Deref(a.Properties.IPAddress, "")}
		seen[e.nic] = true
		out = append(out, e)
	}
	for _, c := range pool.BackendIPConfigurations {
		if c == nil || seen[strings.ToLower(ptr.Deref(c.ID, ""))] {
			continue
		}
		e := entry{nic: strings.ToLower(ptr.Deref(c.ID, ""))}
		if c.Properties != nil {
			e.address = ptr.Deref(c.Properties.PrivateIPAddress, "")
		}
		out = append(out, e)
	}
	return out
}
