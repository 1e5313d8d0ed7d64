package drain

import "context"

// settle waits because a balancer's data plane lags behind its API, or in place of a proof.
func (n *nodeRun) settle(ctx context.Context, dep *departure) error {
	if dep.settle <= 0 {
		return n.stop.Err()
	}
	end := n.step("settle", n.name, dep.key.String())
	err := n.stop.pause(ctx, n.Clock, dep.settle)
	end(err, dep.settle.String())
	return err
}
