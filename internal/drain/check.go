package drain

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// relyOnCheck lets the pods of a Service go whose balancer takes the node out by its own health check, because they
// provably outlive it: once the hook, where it can look, saw that the check works on this node and on another one.
func (n *nodeRun) relyOnCheck(ctx context.Context, dep *departure) error {
	preflight, ok := dep.hook.(lbhooks.Preflight)
	if !ok {
		n.emit(Relied{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Evidence: "its pods outlive the check"})
		return nil
	}
	end := n.step("prove", n.name, dep.key.String())
	soft, cancel := n.stop.context(ctx)
	defer cancel()
	if dep.timeout > 0 {
		var release context.CancelFunc
		soft, release = context.WithTimeout(soft, dep.timeout)
		defer release()
	}
	evidence, err := preflight.Before(soft, n.target(dep), n.others(dep.key))
	switch {
	case err == nil:
		n.emit(Relied{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Evidence: evidence})
	case n.stop.Err() != nil:
		err = n.stop.Err()
	case ctx.Err() == nil:
		err = n.notOut(dep, err)
	}
	end(err, evidence)
	return err
}

// others lists the nodes outside this run that stay and have a usable endpoint of a Service.
func (n *nodeRun) others(key guard.Key) []*corev1.Node {
	_, snapshot := n.current()
	ix := n.index(snapshot, n.opts.Nodes)
	svc, ok := ix.Service(key)
	if !ok {
		return nil
	}
	return n.carriers(ix, svc)
}
