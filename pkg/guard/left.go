package guard

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// whatIsLeft blocks when a port that the loss takes away keeps no endpoint anywhere, or none where this balancer sends.
func (j *judgement) whatIsLeft() bool {
	none, unreachable := map[*Port]bool{}, map[*Port]bool{}
	for i := range j.cover.ports {
		pc := &j.cover.ports[i]
		if !j.losesPort(pc) {
			continue
		}
		left := map[string]bool{}
		for k := range pc.left {
			if j.remains(&pc.left[k]) {
				left[pc.left[k].Node] = true
			}
		}
		switch {
		case len(left) == 0:
			none[pc.port] = true
		case !j.reachable(left):
			unreachable[pc.port] = true
		}
	}
	if j.comes() != nil {
		if len(none) > 0 {
			j.awaits(LastEndpoint, j.lastMessage(none))
		}
		if len(unreachable) > 0 {
			j.awaits(NoEligibleNode, "endpoints are left, but only where this balancer does not send"+j.whyNot())
		}
		return false
	}
	if len(none) > 0 {
		j.block(LastEndpoint, j.lastMessage(none), j.lastAdvice())
	}
	if len(unreachable) > 0 {
		j.block(NoEligibleNode, "endpoints are left, but only where this balancer does not send"+j.whyNot(),
			"let another node with an endpoint into the balancer, or add a replica on one that is in it")
	}
	return len(none)+len(unreachable) > 0
}

func (j *judgement) losesPort(pc *portCoverage) bool {
	for _, n := range j.lost {
		if pc.local[n].state() != StateEmpty && j.after(pc.local[n]) == StateEmpty {
			return true
		}
	}
	return false
}

// reachable reports whether some node with an endpoint left is one that the balancer sends to or could, for this Service
// and for every other one that shares its address.
func (j *judgement) reachable(left map[string]bool) bool {
	for node := range left {
		if !j.eligible(node) {
			continue
		}
		suits := true
		for _, key := range j.svc.SharedWith {
			suits = suits && j.suitsShared(key, node)
		}
		if suits {
			return true
		}
	}
	return false
}

// suitsShared reports whether a node has, or will still have, an endpoint of another Service on the same address.
func (j *judgement) suitsShared(key Key, node string) bool {
	other, ok := j.ix.Service(key)
	if !ok || !other.External {
		return true
	}
	cover := Cover(other)
	if !cover.Has() {
		return true
	}
	for i := range cover.ports {
		if !slices.ContainsFunc(cover.ports[i].left, func(e Endpoint) bool { return e.Node == node && j.remains(&e) }) {
			return false
		}
	}
	return true
}

func (j *judgement) lastMessage(ports map[*Port]bool) string {
	where := strings.Join(j.lost, ", ")
	message := "the other endpoints terminate, or are on nodes that are not Ready or are leaving" + j.leavers()
	switch n := j.endpointsOn(j.lost); {
	case len(ports) < len(j.cover.ports):
		message = fmt.Sprintf("all endpoints of port %s are on %s", strings.Join(titles(ports), ", "), where)
	case n < j.plan.Endpoints.Before:
	case n == 1:
		message = "the only endpoint is on " + where
	default:
		message = fmt.Sprintf("all %d endpoints are on %s", n, where)
	}
	if pin := j.pin(); pin != "" {
		message += "; its pods are pinned (" + pin + "), so replacements can run nowhere else"
	}
	return message
}

// leavers names the leaving nodes that have endpoints of the Service, and who drains them.
func (j *judgement) leavers() string {
	names := map[string]string{}
	for i := range j.cover.ports {
		for name := range j.cover.ports[i].local {
			n, ok := j.ix.Node(name)
			if !ok || !n.leaves(j.loss.Run) || j.loss.Nodes[name] {
				continue
			}
			names[name] = name
			if n.Claim != nil && n.Claim.Holder != "" {
				names[name] = fmt.Sprintf("%s (run %s of %s)", name, n.Claim.Run, n.Claim.Holder)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	all := slices.Sorted(maps.Values(names))
	more := ""
	if len(all) > 3 {
		more = fmt.Sprintf(" +%d", len(all)-3)
	}
	return ": " + strings.Join(all[:min(len(all), 3)], ", ") + more
}

func (j *judgement) lastAdvice() string {
	switch {
	case j.noneCan() != "":
		return j.noneCan()
	case j.pin() != "":
		return "drop the pin and spread the pods: safedrain audit " + j.svc.Key.String() + " shows how"
	case j.lostOf("StatefulSet"):
		return "a StatefulSet has no surge: no extra pod comes before the eviction; if its application allows more replicas, add one, wait until it is Ready on a node that stays, and try again"
	}
	return "add a replica on a node that stays, wait until it is Ready, and try again"
}

// endpointsOn counts the usable endpoints on some nodes.
func (j *judgement) endpointsOn(nodes []string) int {
	var on []Endpoint
	for i := range j.cover.ports {
		for _, n := range nodes {
			on = append(on, j.cover.ports[i].local[n].usable()...)
		}
	}
	return distinct(on)
}

// pin returns what ties the lost pods to nodes of the loss; "" when they could run elsewhere.
func (j *judgement) pin() string {
	for _, node := range j.lost {
		for pod := range j.ix.Pods(node) {
			if !j.isEndpoint(pod.UID) {
				continue
			}
			if pin := pinnedTo(&pod.Spec, j.ix, j.loss.Nodes); pin != "" {
				return pin
			}
		}
	}
	return ""
}

// lostOf reports whether a lost pod is owned by that kind of controller.
func (j *judgement) lostOf(kind string) bool {
	for _, node := range j.lost {
		for pod := range j.ix.Pods(node) {
			if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == kind && j.isEndpoint(pod.UID) {
				return true
			}
		}
	}
	return false
}

func (j *judgement) whyNot() string {
	seen := map[string]bool{}
	for i := range j.cover.ports {
		for k := range j.cover.ports[i].left {
			e := &j.cover.ports[i].left[k]
			if !j.remains(e) || j.eligible(e.Node) {
				continue
			}
			why := j.seat(e.Node).Why
			if n, ok := j.ix.Node(e.Node); ok && n.Virtual {
				why = "a virtual node"
			}
			if why == "" {
				why = "not selected"
			}
			seen[e.Node+": "+why] = true
		}
	}
	reasons := sortedKeys(seen)
	if len(reasons) == 0 {
		return ""
	}
	if len(reasons) > 3 {
		reasons = append(reasons[:3], fmt.Sprintf("+%d", len(reasons)-3))
	}
	return " (" + strings.Join(reasons, "; ") + ")"
}
