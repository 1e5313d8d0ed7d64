package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const (
	// portHook is the hook that looks at healthCheckNodePort, whoever fronts the Service.
	portHook = "health-check"
	// holdPoll is the time between two looks while a hold takes effect.
	holdPoll = 250 * time.Millisecond
	// holdWatch is the time between two looks while the check's time passes.
	holdWatch = time.Second
	// proxyLag is what a port that cannot be reached is given to turn: the slice's way to kube-proxy, and its pace.
	proxyLag = 2 * time.Second
)

// checkWait is the wait for the balancer's check of one Service on the node.
type checkWait struct {
	n       *nodeRun
	dep     *departure
	witness lbhooks.CheckWitness // nil where the port cannot be reached from here
	why     string
}

// baseline looks at the port before anything is changed: it has to pass here and on another node, or its failure would
// mean nothing and the balancer had nowhere to go. A port that cannot be reached from here leaves only the time.
func (n *nodeRun) baseline(ctx context.Context, dep *departure) (*checkWait, error) {
	w := &checkWait{n: n, dep: dep}
	if dep.check == nil {
		return nil, errors.New("how its balancer checks healthCheckNodePort is not known any more")
	}
	hook, _ := n.Hooks.Hook(portHook)
	witness, ok := hook.(lbhooks.CheckWitness)
	if !ok {
		w.why = "nobody looks at the port"
		return w, nil
	}
	sight, detail, err := witness.Look(ctx, n.target(dep))
	switch {
	case err != nil:
		return nil, err
	case sight == lbhooks.SightUnreachable:
		w.why = detail
		return w, nil
	case sight == lbhooks.SightFailing && n.someHeld(ctx, dep):
	case sight != lbhooks.SightPassing:
		return nil, fmt.Errorf("the port has to pass before its failure means anything, but %s", detail)
	}
	if err := n.anotherPasses(ctx, dep, witness); err != nil {
		return nil, err
	}
	w.witness = witness
	return w, nil
}

// someHeld reports whether a pod of the Service is held by now: by an earlier run, or for another Service that loses the
// pod by the same label. Then the port fails because of that.
func (n *nodeRun) someHeld(ctx context.Context, dep *departure) bool {
	pods, err := n.podsToHold(ctx, dep)
	return err == nil && slices.ContainsFunc(pods, func(p corev1.Pod) bool { _, held := guard.HeldOf(&p); return held })
}

// namedNodes is how many nodes that do not pass are named.
const namedNodes = 3

// anotherPasses fails when no other node with an endpoint passes the check, or none was found to in the time of a proof.
func (n *nodeRun) anotherPasses(ctx context.Context, dep *departure, witness lbhooks.CheckWitness) error {
	var seen []string
	start, others := n.Clock.Now(), n.others(dep.key)
	for i, node := range others {
		if dep.timeout > 0 && n.Clock.Since(start) > dep.timeout {
			seen = append(seen, fmt.Sprintf("%d more were not looked at within %s", len(others)-i, dep.timeout))
			break
		}
		sight, detail, err := witness.Look(ctx, lbhooks.Target{Service: dep.service, Node: node})
		switch {
		case err != nil:
			return err
		case sight == lbhooks.SightPassing:
			return nil
		}
		if i < namedNodes {
			seen = append(seen, detail)
		}
	}
	return fmt.Errorf("no other node passes the check, so the balancer would have nowhere to go (%s)", strings.Join(seen, "; "))
}

// unlisted waits until the controller's slices no longer have the pods.
func (n *nodeRun) unlisted(ctx context.Context, dep *departure, pods []corev1.Pod) error {
	start := n.Clock.Now()
	for {
		var left []corev1.Pod
		err := n.persist(ctx, func(ctx context.Context) error {
			have, err := n.slicesOf(ctx, dep.key)
			left = nil
			for i := range pods {
				if listed(have, pods[i].UID) {
					left = append(left, pods[i])
				}
			}
			return err
		})
		if err != nil || len(left) == 0 {
			return err
		}
		if dep.timeout > 0 && n.Clock.Since(start) > dep.timeout {
			return fmt.Errorf("the EndpointSlice controller still lists %s after %s", podNames(left), dep.timeout)
		}
		if err := n.stop.pause(ctx, n.Clock, holdPoll); err != nil {
			return err
		}
	}
}

// wait returns once the port has failed for the time of the check, without a break.
func (w *checkWait) wait(ctx context.Context) (string, error) {
	n, need := w.n, w.dep.check.Time()
	if w.witness == nil {
		w.pending(0, need+proxyLag, w.why+": by time alone")
		if err := n.stop.pause(ctx, n.Clock, need+proxyLag); err != nil {
			return "", err
		}
		return fmt.Sprintf("by time alone, %s (%s): %s", need, w.dep.check, w.why), nil
	}
	p := portState{last: n.Clock.Now()}
	for {
		sight, detail, err := w.witness.Look(ctx, n.target(w.dep))
		if err != nil {
			return "", err
		}
		now := n.Clock.Now()
		w.note(&p, sight, now, detail)
		if sight == lbhooks.SightFailing && now.Sub(p.failing) >= need {
			return fmt.Sprintf("%s for %s (%s)", detail, need, w.dep.check), nil
		}
		if err := w.hopeless(&p, now, detail); err != nil {
			return "", err
		}
		pause := holdPoll
		if left := need - now.Sub(p.failing); !p.failing.IsZero() && left > 0 {
			pause = min(holdWatch, left)
		}
		if err := n.stop.pause(ctx, n.Clock, pause); err != nil {
			return "", err
		}
	}
}

// portState is what the port of the node was seen to do.
type portState struct {
	failing time.Time // since when it fails, zero while it does not
	last    time.Time // when it was last seen to fail, or, while it does not, since when that is waited for
	breaks  int       // how often it passed again
}

// note keeps what was seen of the port, and says so on a change.
func (w *checkWait) note(p *portState, sight lbhooks.Sight, now time.Time, detail string) {
	switch {
	case sight == lbhooks.SightFailing && p.failing.IsZero():
		p.failing, p.last = now, now
		w.pending(0, w.dep.check.Time(), detail)
	case sight == lbhooks.SightFailing:
		p.last = now
	case sight == lbhooks.SightPassing && !p.failing.IsZero():
		p.failing, p.last = time.Time{}, now
		p.breaks++
		w.pending(0, w.dep.timeout, detail+" again")
	case p.failing.IsZero():
		w.pending(now.Sub(p.last), w.dep.timeout, detail)
	}
}

// hopeless says why there is no use in looking on: the port does not fail, is out of sight, or passes again and again.
func (w *checkWait) hopeless(p *portState, now time.Time, detail string) error {
	timeout := w.dep.timeout
	over := timeout > 0 && now.Sub(p.last) > timeout
	switch {
	case p.breaks > proofTries:
		return fmt.Errorf("the health check passed again %d times although no pod of the Service is listed: %s", p.breaks, detail)
	case over && p.failing.IsZero():
		return fmt.Errorf("the health check does not fail after %s although no pod of the Service is listed: %s", timeout, detail)
	case over:
		return fmt.Errorf("the health check failed, and nobody can say for %s whether it still does: %s", timeout, detail)
	}
	return nil
}

func (w *checkWait) pending(elapsed, timeout time.Duration, evidence string) {
	w.n.emit(ProofPending{
		Node: w.n.name, Service: w.dep.key.String(), Hook: w.dep.hookName, Elapsed: elapsed, Timeout: timeout, Evidence: evidence,
	})
}

// holdOf makes a departure one that holds its pods.
func (n *nodeRun) holdOf(dep *departure, plan *guard.HoldPlan) {
	dep.way, dep.hold, dep.check = wayHold, plan, n.checkOf(dep.key)
	dep.settle = 0
	if n.opts.Settle != nil {
		dep.settle = *n.opts.Settle
	}
}
