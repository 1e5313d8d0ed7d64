package drain

import "context"

// settle waits because a balancer's data plane lags behind its API, or in place of a proof.
func (n *nodeRun) settle(ctx context.Context, dep *departure) error {
	if dep.settle <= 0 {
		return n.stop.Err()
	}
	end := n.step("settle", n.name, dep.key.String())
	wait := n.inTime(dep.settle)
	dep.cut = wait < dep.settle
	err := n.stop.pause(ctx, n.Clock, wait)
	end(err, wait.String())
	return err
}
