package drain

import "context"

// settle waits because a balancer's data plane lags behind its API, or in place of a proof. What is to be done meanwhile
// is done inside that time.
func (n *nodeRun) settle(ctx context.Context, dep *departure, meanwhile func(context.Context, *departure) error) error {
	began := n.Clock.Now()
	if dep.settle <= 0 {
		return cmpErr(meanwhile(ctx, dep), n.stop.Err())
	}
	end := n.step("settle", n.name, dep.key.String())
	wait := n.inTime(dep.settle)
	dep.cut = wait < dep.settle
	err := meanwhile(ctx, dep)
	if err == nil {
		err = n.stop.pause(ctx, n.Clock, wait-n.Clock.Since(began))
	}
	end(err, wait.String())
	return err
}

func nothing(context.Context, *departure) error { return nil }
