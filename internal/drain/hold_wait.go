package drain

import (
	"context"
	"errors"
	"fmt"
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
func (n *nodeRun) baseline(ctx context.Context, dep *departure, begun bool) (*checkWait, error) {
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
	case sight == lbhooks.SightFailing && begun:
	case sight != lbhooks.SightPassing:
		return nil, fmt.Errorf("the port has to pass before its failure means anything, but %s", detail)
	}
	if err := n.anotherPasses(ctx, dep, witness); err != nil {
		return nil, err
	}
	w.witness = witness
	return w, nil
}

// anotherPasses fails when no other node with an endpoint passes the check.
func (n *nodeRun) anotherPasses(ctx context.Context, dep *departure, witness lbhooks.CheckWitness) error {
	var seen []string
	for _, node := range n.others(dep.key) {
		sight, detail, err := witness.Look(ctx, lbhooks.Target{Service: dep.service, Node: node})
		switch {
		case err != nil:
			return err
		case sight == lbhooks.SightPassing:
			return nil
		}
		seen = append(seen, detail)
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
	n, dep, need := w.n, w.dep, w.dep.check.Time()
	if w.witness == nil {
		w.pending(0, need+proxyLag, w.why+": by time alone")
		if err := n.stop.pause(ctx, n.Clock, need+proxyLag); err != nil {
			return "", err
		}
		return fmt.Sprintf("by time alone, %s (%s): %s", need, w.dep.check, w.why), nil
	}
	var failing time.Time // since when, zero while it is not
	asked := n.Clock.Now()
	for {
		sight, detail, err := w.witness.Look(ctx, n.target(w.dep))
		if err != nil {
			return "", err
		}
		now := n.Clock.Now()
		switch {
		case sight == lbhooks.SightFailing && failing.IsZero():
			failing = now
			w.pending(0, need, detail)
		case sight == lbhooks.SightPassing && !failing.IsZero():
			failing, asked = time.Time{}, now
			w.pending(0, dep.timeout, detail+" again")
		case sight != lbhooks.SightFailing && failing.IsZero():
			w.pending(now.Sub(asked), dep.timeout, detail)
		}
		if !failing.IsZero() && sight == lbhooks.SightFailing && now.Sub(failing) >= need {
			return fmt.Sprintf("%s for %s (%s)", detail, need, w.dep.check), nil
		}
		if failing.IsZero() && dep.timeout > 0 && now.Sub(asked) > dep.timeout {
			return "", fmt.Errorf("the health check does not fail after %s although no pod of the Service is listed: %s", dep.timeout, detail)
		}
		pause := holdPoll
		if !failing.IsZero() {
			pause = min(holdWatch, max(need-now.Sub(failing), time.Millisecond))
		}
		if err := n.stop.pause(ctx, n.Clock, pause); err != nil {
			return "", err
		}
	}
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
