package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// askedNodes bounds how many nodes a balancer is asked about. One that uses none of so many has nodes that nobody declared.
const askedNodes = 16

// awaitCarried waits, before a hook is called to take the node out, until its balancer sends to another node. Endpoints that
// are Ready are no proof of that: the balancer's own check of a node that came back a moment ago may not have passed yet.
func (n *nodeRun) awaitCarried(ctx context.Context, dep *departure) error {
	soft, cancel := n.stop.context(ctx)
	defer cancel()
	start, timeout := n.Clock.Now(), n.proofTime(dep)
	_, snapshot := n.current()
	for delay := surgePoll; ; delay = min(delay*2, surgeMaxPoll) {
		why := n.unusedBy(soft, n.index(snapshot, n.opts.Nodes), dep.key)
		if err := n.stop.Err(); err != nil || why == "" {
			return err
		}
		elapsed := n.Clock.Since(start)
		if timeout > 0 && elapsed >= timeout {
			return n.notOut(dep, errors.New("it was not taken out, since no other node carries the Service: "+why))
		}
		n.emit(ProofPending{
			Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Elapsed: elapsed, Timeout: timeout, Evidence: "not yet: " + why,
		})
		if err := n.stop.pause(ctx, n.Clock, delay); err != nil {
			return err
		}
		if again, err := n.loadAgain(soft); err == nil {
			snapshot = again
		}
	}
}

// unusedBy returns why the balancer of a Service does not send to any node that is to carry it, and will not once the drained
// nodes are out; "" where it does, where it will, or where nobody can tell.
func (d *run) unusedBy(ctx context.Context, ix view, key guard.Key) string {
	svc, ok := ix.Service(key)
	if !ok || svc.Rotation.Nobody || !svc.Rotation.Provable || svc.Rotation.Broken != "" {
		return ""
	}
	r := &svc.Rotation
	if r.Alone != "" {
		return r.Hook + ": " + r.Alone
	}
	hook, known := d.Hooks.Hook(r.Hook)
	_, asserted := hook.(lbhooks.Assertable)
	raw, there := ix.Snapshot().RawService(key)
	if !known || !there {
		return ""
	}
	why := ""
	for i, node := range d.carriers(ix, svc) {
		moves := slices.ContainsFunc(r.Moves, func(m guard.Move) bool { return m.To == node.Name })
		// What is said of a balancer that nothing else knows is not what it does: it is asked.
		if in := r.Seat(node.Name).In; moves || in != guard.No && !asserted || i == askedNodes {
			return ""
		}
		proof, err := d.observe(ctx, hook, raw, node)
		if err != nil || !proof.Out && !proof.Idle {
			return ""
		}
		why = fmt.Sprintf("%s does not send to %s for %s yet: %s", r.Hook, node.Name, key, proof.Evidence)
	}
	return why
}

// carriers lists the nodes that stay and are to carry a Service: those with a usable endpoint, and of policy Cluster those
// that are Ready and that its balancer may have.
func (d *run) carriers(ix view, svc *guard.ServiceFacts) []*corev1.Node {
	var names []string
	if svc.External {
		cover := guard.Cover(svc)
		names = cover.Nodes()
	} else {
		for n := range ix.Nodes() {
			if n.Ready && !n.Virtual && svc.Rotation.Seat(n.Name).In != guard.No {
				names = append(names, n.Name)
			}
		}
	}
	var out []*corev1.Node
	for _, name := range names {
		facts, ok := ix.Node(name)
		node, there := ix.Snapshot().RawNode(name)
		if ok && there && facts.Leaving == guard.Stays && !slices.Contains(d.opts.Nodes, name) {
			out = append(out, node)
		}
	}
	return out
}

// observe makes one observation of a balancer.
func (d *run) observe(ctx context.Context, hook lbhooks.Hook, svc *corev1.Service, node *corev1.Node) (lbhooks.Proof, error) {
	ctx, cancel := context.WithTimeout(ctx, lbhooks.DefaultCall)
	defer cancel()
	return hook.Prove(ctx, lbhooks.Target{Service: svc, Node: node})
}
