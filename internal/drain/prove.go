package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// leave takes the node out of the balancer of one Service: the hook's call where there is one, the proof, the settle
// time. At its end the node is looked at once more and so are the Service's other nodes. Only nil lets its pods go.
func (n *nodeRun) leave(ctx context.Context, dep *departure) error {
	if dep.way == wayForced {
		n.emit(NotProven{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Accepted: dep.accepted})
		return n.letGo(ctx, dep)
	}
	if err := n.callWithdraw(ctx, dep); err != nil {
		return err
	}
	switch dep.way {
	case wayProve:
		if err := n.proveToLast(ctx, dep); err != nil {
			return err
		}
	case wayCheck:
		if err := n.relyOnCheck(ctx, dep); err != nil {
			return err
		}
	case wayHold:
		if err := n.hold(ctx, dep); err != nil {
			return err
		}
	default:
		n.emit(NotProven{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Accepted: dep.accepted, Settle: dep.settle})
	}
	if dep.way != wayProve {
		if err := n.settle(ctx, dep, nothing); err != nil {
			return err
		}
	}
	return n.letGo(ctx, dep)
}

// letGo lets the pods of a Service go, if the node still is as it is to be and the Service's other nodes still serve. The
// claim says so: the gate holds everybody's evictions until it does.
func (n *nodeRun) letGo(ctx context.Context, dep *departure) error {
	if dep.entry {
		if err := n.check(ctx); err != nil {
			return err
		}
		n.done(dep)
		return nil
	}
	if dep.way != wayForced && !dep.late {
		if _, err := n.covered(ctx, dep.key); err != nil {
			return err
		}
	}
	err := n.change(ctx, func(ctx context.Context) error {
		return n.held.Finish(ctx, func(c *claim.Claim) { release(c, dep) })
	})
	if err != nil {
		return err
	}
	n.done(dep)
	return nil
}

func (n *nodeRun) done(dep *departure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.out[dep.key] = dep
	if dep.way == wayProve || dep.way == wayHold {
		n.hooks = append(n.hooks, dep.hookName)
	}
}

// callWithdraw calls the hook of a Service whose removal is a call. The call in flight is finished when the run stops.
func (n *nodeRun) callWithdraw(ctx context.Context, dep *departure) error {
	if dep.way == wayCheck {
		return nil // the evictions are the withdrawal
	}
	timeout := dep.timeout
	n.emit(Withdrawing{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Timeout: timeout})
	if dep.removal == guard.RemovalLabel && !n.labelled() && dep.way == wayProve {
		return n.notOut(dep, errors.New("the node may not be labelled"))
	}
	if dep.hook == nil || dep.removal != guard.RemovalHook {
		return nil
	}
	if err := n.awaitCarried(ctx, dep); err != nil {
		return err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	if err := dep.hook.Withdraw(ctx, n.target(dep)); err != nil {
		if dep.way == waySettle {
			n.emit(Warned{Text: fmt.Sprintf("%s: %v; accepted %s", dep.key, err, dep.accepted)})
			return nil
		}
		return n.notOut(dep, err)
	}
	return nil
}

func (n *nodeRun) target(dep *departure) lbhooks.Target {
	return lbhooks.Target{Service: dep.service, Node: n.held.Node()}
}

func (n *nodeRun) notOut(dep *departure, cause error) error {
	return &NotOut{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Cause: cause}
}

// proofTries is how often a node is proven out anew that was back in rotation at the end of the settle time.
const proofTries = 3

// proveToLast waits for the proof and the settle time, and looks once more: a node that is back in rotation by then, as a
// target that turns healthy again while it drains, is proven anew.
func (n *nodeRun) proveToLast(ctx context.Context, dep *departure) error {
	for try := 1; ; try++ {
		if err := n.prove(ctx, dep); err != nil {
			return err
		}
		if err := n.settle(ctx, dep, n.recordProof); err != nil || dep.settle <= 0 {
			return err
		}
		again, err := n.lookOnce(ctx, dep)
		switch {
		case n.stop.Err() != nil:
			return n.stop.Err()
		case err == nil && again.Out:
			return nil
		case err == nil:
			err = fmt.Errorf("it was out, and is back after %s: %s", dep.settle, again.Evidence)
		}
		if wrong := n.disprove(ctx, dep); wrong != nil {
			return wrong
		}
		if try == proofTries {
			return n.notOut(dep, err)
		}
		n.emit(Warned{Text: fmt.Sprintf("%s on %s: %v; proving it again", dep.key, n.name, err)})
	}
}

// disprove takes a proof back that the claim has: others act on it.
func (n *nodeRun) disprove(ctx context.Context, dep *departure) error {
	dep.began(n.Clock.Now(), dep.timeout)
	return n.change(ctx, func(ctx context.Context) error {
		return n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { note(c, dep) })
	})
}

// recordProof says in the claim that the node is out of the balancer of a Service: the gate reads it.
func (n *nodeRun) recordProof(ctx context.Context, dep *departure) error {
	at := n.Clock.Now().UTC().Truncate(time.Second)
	dep.until(at, dep.settle)
	return n.change(ctx, func(ctx context.Context) error {
		return n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) {
			note(c, dep)
			s := c.Services[dep.key.String()]
			s.ProofAt = &at
			c.Services[dep.key.String()] = s
		})
	})
}

// lookOnce makes one observation of the balancer.
func (n *nodeRun) lookOnce(ctx context.Context, dep *departure) (lbhooks.Proof, error) {
	ctx, cancel := n.stop.context(ctx)
	defer cancel()
	ctx, cancelCall := context.WithTimeout(ctx, lbhooks.DefaultCall)
	defer cancelCall()
	return dep.hook.Prove(ctx, n.target(dep))
}

// prove waits for the hook's proof.
func (n *nodeRun) prove(ctx context.Context, dep *departure) error {
	if dep.hook == nil {
		return n.notOut(dep, fmt.Errorf("no hook %q", dep.hookName))
	}
	end := n.step("prove", n.name, dep.key.String())
	start := n.Clock.Now()
	soft, cancel := n.stop.context(ctx)
	defer cancel()
	proof, err := lbhooks.Wait(soft, n.Clock, dep.hook, n.target(dep), lbhooks.WaitOptions{
		Timeout: n.proofTime(dep),
		Pending: func(p lbhooks.Pending) {
			evidence := p.Proof.Evidence
			if p.Err != nil {
				evidence = p.Err.Error()
			}
			n.emit(ProofPending{
				Node: n.name, Service: dep.key.String(), Hook: dep.hookName,
				Elapsed: p.Elapsed, Timeout: dep.timeout, Evidence: evidence,
			})
		},
	})
	if err != nil {
		switch {
		case n.stop.Err() != nil:
			err = n.stop.Err()
		case ctx.Err() == nil:
			err = n.notOut(dep, err)
		}
		end(err, proof.Evidence)
		return err
	}
	end(nil, proof.Evidence)
	switch {
	case proof.Settle == nil || n.opts.Settle != nil:
	case dep.stated != nil:
		dep.settle = max(dep.settle, *proof.Settle)
	default:
		dep.settle = *proof.Settle
	}
	n.emit(Proven{
		Node: n.name, Service: dep.key.String(), Hook: dep.hookName, By: proof.By, Evidence: proof.Evidence,
		After: n.Clock.Since(start), Settle: dep.settle,
	})
	return nil
}
