package admission

import (
	"context"
	"fmt"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// withoutPod answers when the pod cannot be read. Where no slice names it, or no balancer sends to its node, it is let pass:
// what nobody sends to makes no blackhole. Else it is to come again.
func (e *Evictions) withoutPod(ask *asked) *answer {
	out := allowed(string(guard.NotAnEndpoint))
	e.Store.Read(func(v *cluster.StoreView) {
		uid, name, ok := v.Endpoint(ask.pod)
		if !ok {
			return
		}
		node, ok := v.RawNode(name)
		switch {
		case !ok:
			out = allowed(string(guard.NodeGone))
			return
		case node.Annotations[guard.AnnotationGate] == string(Off):
			out = allowed(evictNodeOff)
			return
		}
		out = allowed(string(guard.NotInRotation))
		strictest := Off
		var stands guard.Key
		for svc := range v.ServicesOf(uid, ask.pod, nil) {
			m := ModeOf(e.Mode, v.Gate(ask.pod.Namespace), svc.Gate)
			if svc.External && !svc.Rotation.Nobody && svc.Rotation.Seat(name).In != guard.No && m.stricter(strictest) {
				strictest, stands = m, svc.Key
			}
		}
		if strictest != Off {
			out = e.unknown(strictest, evictCannotRead, fmt.Sprintf("%s: the pod could not be read, try again", stands))
		}
	})
	return out
}

// withoutNode answers when the node cannot be read. What the rules allow without a word of who drains it is allowed: no
// balancer sends to it, or another pod is kept there. Else it is to come again.
func (e *Evictions) withoutNode(ctx context.Context, live Live, ask *asked, pod guard.PodFacts) *answer {
	facts := guard.NodeFacts{Name: pod.Node}
	off := false
	e.Store.Read(func(v *cluster.StoreView) {
		if n, ok := v.Node(pod.Node); ok {
			facts = *n
			facts.Claim, facts.Leaving = nil, guard.Stays
		}
		node, ok := v.RawNode(pod.Node)
		off = ok && node.Annotations[guard.AnnotationGate] == string(Off)
	})
	if off {
		return allowed(evictNodeOff)
	}
	ev := e.withCompany(ctx, live, guard.Eviction{Pod: pod, Node: &facts})
	var v guard.EvictionVerdict
	var namespace string
	e.Store.Read(func(view *cluster.StoreView) {
		v, namespace = guard.JudgeEviction(ev, view), view.Gate(ask.pod.Namespace)
	})
	refusing, warning := e.sort(v.Blocks, namespace)
	switch {
	case len(refusing) > 0:
		return e.unknown(Enforce, evictCannotRead, fmt.Sprintf("%s: node %s could not be read, try again", refusing[0].Service, pod.Node))
	case len(warning) > 0:
		return e.unknown(Warn, evictCannotRead, fmt.Sprintf("%s: node %s could not be read", warning[0].Service, pod.Node))
	case !v.Allow:
		return allowed(evictOff)
	}
	return allowed(string(v.Reason))
}
