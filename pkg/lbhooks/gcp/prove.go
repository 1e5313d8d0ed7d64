package gcp

import (
	"context"
	"fmt"
	"strings"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// healthy is the state of a member that the balancer sends to.
const healthy = "HEALTHY"

// view is one observation of a balancer.
type view struct {
	member  bool
	own     []string // health of the node's own entries
	healthy int      // other members that are healthy
}

// Prove makes one observation: the node is in no group of the balancer any more, or the balancer's own health check fails
// it, and another member is healthy. When no member is healthy the balancer sends to all of them.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.kube == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, "there is no API server to ask", nil)
	}
	at, ok := instanceOf(t.Node)
	if !ok {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, fmt.Sprintf("node %q has no Compute Engine instance in its providerID (%q)", t.Node.Name, t.Node.Spec.ProviderID), nil)
	}
	b, err := h.balancer(ctx, t, at)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	look := h.lookAtGroups
	if b.pool {
		look = h.lookAtPool
	}
	v, err := look(ctx, b, at)
	if err != nil {
		if isNotFound(err) {
			h.forget(t.Service)
		}
		return lbhooks.Proof{}, err
	}
	return h.judge(b, v), nil
}

func (h *Hook) judge(b *balancer, v *view) lbhooks.Proof {
	state := "no member"
	if v.member {
		state = "a member"
	}
	if len(v.own) > 0 {
		state += ", " + strings.Join(v.own, " and ")
	}
	p := lbhooks.Proof{Evidence: fmt.Sprintf("%s: %s; %d others healthy", b.name, state, v.healthy)}
	fails := len(v.own) > 0
	for _, health := range v.own {
		fails = fails && health == "UNHEALTHY"
	}
	switch {
	case v.healthy == 0:
		p.Evidence += ": without a healthy one the balancer sends to all"
	case !v.member && len(v.own) == 0, fails:
		settle := h.settle()
		p.Out, p.Settle = true, &settle
	}
	return p
}

// lookAtGroups asks for the members of the groups in the node's zone and for the health of all groups.
func (h *Hook) lookAtGroups(ctx context.Context, b *balancer, at instance) (*view, error) {
	v := &view{}
	for _, url := range b.groups {
		g, ok := readGroup(url)
		if !ok {
			return nil, lbhooks.Unavailable(Name, fmt.Sprintf("backend service %s has a backend that is neither a zonal NEG nor an instance group: %s", b.name, url), nil)
		}
		if g.zone == at.zone {
			member, err := h.member(ctx, g, at)
			if err != nil {
				return nil, err
			}
			v.member = v.member || member
		}
		var answer healthAnswer
		ask := call{path: b.resource("backendServices", b.name) + "/getHealth", permission: permissionBackends, body: map[string]string{"group": url}}
		if err := h.api.do(ctx, ask, &answer); err != nil {
			return nil, err
		}
		v.add(answer.HealthStatus, at, g.zone)
	}
	return v, nil
}

// add sorts what a balancer says of its members into the node's own and others.
func (v *view) add(all []healthStatus, at instance, zone string) {
	for _, s := range all {
		switch state := strings.ToUpper(s.HealthState); {
		case at.is(s.Instance, zone):
			if state == "" {
				state = "UNKNOWN"
			}
			v.own = append(v.own, state)
		case state == healthy:
			v.healthy++
		}
	}
}

// lookAtPool reads a target pool's members, then the health of the node, then that of others until one is healthy: Google
// answers for one instance at a time.
func (h *Hook) lookAtPool(ctx context.Context, b *balancer, at instance) (*view, error) {
	resource := b.resource("targetPools", b.name)
	var pool targetPool
	if err := h.api.do(ctx, call{path: resource, permission: permissionPools}, &pool); err != nil {
		return nil, err
	}
	v := &view{}
	for _, url := range pool.Instances {
		own := at.is(url, "")
		v.member = v.member || own
		if !own && v.healthy > 0 {
			continue
		}
		var answer healthAnswer
		ask := call{path: resource + "/getHealth", permission: permissionPools, body: map[string]string{"instance": url}}
		if err := h.api.do(ctx, ask, &answer); err != nil {
			return nil, err
		}
		v.add(answer.HealthStatus, at, "")
	}
	return v, nil
}
