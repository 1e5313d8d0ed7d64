package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// A hold takes a node out of a balancer that nobody can tell anything, through the balancer's own check of
// healthCheckNodePort, while the pods still serve:
//  1. slices of our own say of each pod that it serves and terminates; nothing changes yet, for the controller's entry wins;
//  2. a label of each pod is changed, so that the Service no longer selects it: the controller's entry goes, the port
//     turns to 503, and kube-proxy serves through ours;
//  3. the time of the check passes;
//  4. the pods are evicted, and the slices go with them, for the pods own them.
//
// Every step can be done twice, and what is done is read from the pods and slices: so a run that died is taken up.

// hold makes the health check fail for one Service on the node and waits until its balancer has seen it.
func (n *nodeRun) hold(ctx context.Context, dep *departure) error {
	end := n.step("hold", n.name, dep.key.String())
	start := n.Clock.Now()
	soft, cancel := n.stop.context(ctx)
	defer cancel()
	evidence, err := n.holdPods(ctx, soft, dep)
	if err != nil {
		var against *NotOut
		switch {
		case n.stop.Err() != nil:
			err = n.stop.Err()
		case ctx.Err() == nil && !errors.As(err, &against) && !definite(err):
			err = n.notOut(dep, err)
		}
		end(err, evidence)
		return err
	}
	end(nil, evidence)
	n.emit(Proven{
		Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Evidence: evidence,
		After: n.Clock.Since(start), Settle: dep.settle,
	})
	return n.recordProof(ctx, dep)
}

// holdPods carries the steps out, and returns the evidence that the balancer left the node out. What writes is finished
// when the work is to stop; soft ends what only looks.
func (n *nodeRun) holdPods(ctx, soft context.Context, dep *departure) (string, error) {
	pods, err := n.podsToHold(ctx, dep)
	if err != nil {
		return "", err
	}
	w, err := n.baseline(soft, dep)
	if err != nil {
		return "", err
	}
	if err := n.mayEvict(ctx, pods); err != nil {
		return "", err
	}
	for i := range pods {
		if err := n.stop.Err(); err != nil {
			return "", err
		}
		kept, err := n.coverPod(ctx, dep, &pods[i])
		if err != nil {
			return "", err
		}
		n.keeper().keep(&pods[i], kept)
	}
	// From here on the pods of the Service are held together: one that is not would keep the check at 200.
	for i := range pods {
		if err := n.stop.Err(); err != nil {
			return "", err
		}
		if err := n.hide(ctx, dep, &pods[i]); err != nil {
			return "", err
		}
	}
	n.emit(Held{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Label: dep.hold.Label, Exact: dep.hold.Exact, Pods: len(pods)})
	if err := n.unlisted(ctx, dep, pods); err != nil {
		return "", err
	}
	return w.wait(soft)
}

// podsToHold lists the pods of the Service on the node that live, those that are held already included. One that the plan
// does not know is in the way: nothing was asked about it.
func (n *nodeRun) podsToHold(ctx context.Context, dep *departure) ([]corev1.Pod, error) {
	var all []corev1.Pod
	err := n.persist(ctx, func(ctx context.Context) (err error) {
		all, _, err = n.listPods(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	for i := range all {
		p := &all[i]
		over := p.DeletionTimestamp != nil || guard.Finished(p)
		if over || p.Namespace != dep.key.Namespace || !guard.Selects(dep.service.Spec.Selector, guard.LabelsBefore(p)) {
			continue
		}
		if !dep.hold.Holds(p.UID) {
			return nil, fmt.Errorf("pod %s/%s came to the node after it was judged; run the command again", p.Namespace, p.Name)
		}
		pods = append(pods, *p)
	}
	return pods, nil
}

// mayEvict asks for each pod, without effect, whether its eviction would be allowed now: what is held has to go. A webhook's
// no is no answer, for it may wait for the very proof that the hold is to give.
func (n *nodeRun) mayEvict(ctx context.Context, pods []corev1.Pod) error {
	if n.opts.Flags.DisableEviction {
		return nil
	}
	for i := range pods {
		p := &pods[i]
		if _, held := guard.HeldOf(p); held {
			continue
		}
		plan := &guard.PodPlan{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: n.name, Action: guard.ActionEvict}
		var a answer
		err := n.persist(ctx, func(ctx context.Context) error {
			err := n.removeDry(ctx, plan)
			if a = classify(plan, err); a.kind == answerPassing || a.kind == answerThrottled {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
		switch a.kind {
		case answerAccepted, answerGone, answerDenied:
		case answerForbidden:
			return &Denied{What: "evict pod " + plan.Key().String(), Cause: errText(a.what)}
		default:
			return fmt.Errorf("pod %s may not be evicted now, so it is not held: %s: %s", plan.Key(), a.by, a.what)
		}
	}
	return nil
}

// removeDry asks for an eviction that the server judges and does not carry out.
func (n *nodeRun) removeDry(ctx context.Context, p *guard.PodPlan) error {
	dry := run{Runner: n.Runner, opts: n.opts}
	dry.opts.DryRun = DryRunServer
	return dry.remove(ctx, p)
}

// keeperOf is made when it is first asked for.
type keeperOf struct {
	once sync.Once
	it   *keeper
}

// keeper returns what looks after the held pods of the node until its drain ends.
func (n *nodeRun) keeper() *keeper {
	n.kept.once.Do(func() { n.kept.it = newKeeper(n) })
	return n.kept.it
}

// endHold ends the looking after: the slices of pods that are gone go too.
func (n *nodeRun) endHold(ctx context.Context) {
	n.kept.once.Do(func() {})
	if n.kept.it != nil {
		n.kept.it.end(ctx)
	}
}

// checkOf is how the balancer of a Service checks the port.
func (n *nodeRun) checkOf(key guard.Key) *guard.HealthCheck {
	_, snapshot := n.current()
	if f, ok := snapshot.Index(n.Hooks, n.opts.Nodes).Service(key); ok {
		return f.Rotation.HealthCheck
	}
	return nil
}

func podNames(pods []corev1.Pod) string {
	var names []string
	for i := range pods {
		names = append(names, pods[i].Namespace+"/"+pods[i].Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
