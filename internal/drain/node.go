package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// maxPasses bounds how often pods that came back to a node are evicted once more.
const maxPasses = 2

// nodeRun is the drain of one claimed node. Its stopper follows the run's, and ends earlier when something about this
// node alone stands against going on.
type nodeRun struct {
	*run
	name    string
	held    *claim.Held
	stop    *stopper
	started time.Time
	kept    keeperOf

	mu       sync.Mutex
	plan     *guard.DrainPlan // of its own, once the cluster was judged again for it
	snapshot *cluster.Snapshot
	finished bool
	deleted  bool
	out      map[guard.Key]*departure // departures that are done, by Service
	hooks    []string                 // hooks the node is proven out of
	pods     map[types.UID]*podState  // every pod that was to go, over all passes
	evicted  int
	coverage map[guard.Key]int // endpoints that must be back before the next node, by Service
	cutoff   time.Time         // when pods go, proven or not; zero without a deadline
	lates    []error           // of type *Late; guarded by mu
	verified map[guard.Key]int // endpoints left elsewhere when the node was verified, by Service; guarded by mu
}

func newNodeRun(d *run, h *claim.Held) *nodeRun {
	return &nodeRun{
		run: d, name: h.Name(), held: h, stop: newStopper(),
		out: map[guard.Key]*departure{}, pods: map[types.UID]*podState{}, coverage: map[guard.Key]int{},
	}
}

// drain takes the node out of its balancers, empties it and verifies it.
func (n *nodeRun) drain(ctx context.Context) error {
	n.started = n.Clock.Now()
	defer n.stop.follow(n.run.stop)()
	timeout := n.opts.Timeout
	if d := n.opts.Deadline; d > 0 && (timeout == 0 || d < timeout) {
		timeout = d
	}
	defer n.stop.after(n.Clock, timeout, &TimedOut{Node: n.name, After: timeout})()
	defer n.endHold(ctx)
	err := n.passes(ctx)
	if err == nil || errors.Is(err, errNodeDeleted) {
		err = cmpErr(n.lowerRest(ctx), err)
	}
	if err == nil {
		err = n.seal(ctx)
	}
	err = n.unlessDeleted(err)
	if late := n.tooLate(); late != nil {
		err = errors.Join(err, late)
	}
	return err
}

// unlessDeleted takes the deletion of the node for the end of its drain, and returns every other error.
func (n *nodeRun) unlessDeleted(err error) error {
	if !errors.Is(err, errNodeDeleted) {
		return err
	}
	n.mu.Lock()
	n.finished, n.deleted = true, true
	n.mu.Unlock()
	n.emit(Drained{Node: n.name, Took: n.Clock.Since(n.started), Evicted: n.evictedCount(), Deleted: true})
	return nil
}

// passes drains what the plan says, and then once more what came back meanwhile.
func (n *nodeRun) passes(ctx context.Context) error {
	plan, _ := n.current()
	n.warnOfShortTimeout(plan)
	for pass := 1; ; pass++ {
		if err := n.pass(ctx, plan); err != nil {
			return err
		}
		next, err := n.verify(ctx)
		if err != nil || next == nil {
			return err
		}
		if pass == maxPasses {
			return n.cameBack(next)
		}
		plan = next
	}
}

// pass withdraws the node, evicts at once what no Service waits for, and the rest of each Service's pods when its
// departure is proven and settled.
func (n *nodeRun) pass(ctx context.Context, plan *guard.DrainPlan) error {
	if err := n.stop.Err(); err != nil {
		return err
	}
	n.setCutoff(plan)
	departures, err := n.departures(plan)
	if err != nil {
		return err
	}
	if err := n.withdraw(ctx, departures); err != nil {
		return err
	}
	q := newQueue(n, plan, departures)
	return q.run(ctx)
}

// warnOfShortTimeout says so when some pod may take longer to end than the drain may take in all.
func (n *nodeRun) warnOfShortTimeout(plan *guard.DrainPlan) {
	var longest *guard.PodPlan
	for i := range plan.Pods {
		p := &plan.Pods[i]
		if p.Node == n.name && (p.Action != guard.ActionSkip || p.Waiting) && (longest == nil || p.Grace > longest.Grace) {
			longest = p
		}
	}
	if longest != nil && n.opts.Timeout > 0 && longest.Grace > n.opts.Timeout {
		n.emit(Warned{Text: fmt.Sprintf("the timeout of %s is shorter than the grace period of pod %s, %s",
			n.opts.Timeout, longest.Key(), longest.Grace)})
	}
}

// seal marks a node as drained in its claim. The node stays claimed and withdrawn until uncordon.
func (n *nodeRun) seal(ctx context.Context) error {
	now := n.Clock.Now().UTC().Truncate(time.Second)
	err := n.change(ctx, func(ctx context.Context) error {
		return n.held.Finish(ctx, func(c *claim.Claim) {
			c.Phase, c.Ended = claim.Proven, &now
			n.noteAll(c)
		})
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.finished = true
	n.mu.Unlock()
	plan, _ := n.current()
	stay := 0
	for i := range plan.Pods {
		if p := &plan.Pods[i]; p.Node == n.name && p.Action == guard.ActionSkip && !p.Waiting {
			stay++
		}
	}
	n.emit(Drained{Node: n.name, Took: n.Clock.Since(n.started), Evicted: n.evictedCount(), Stay: stay})
	return nil
}

// noteAll notes the Services without a lever too, so that uncordon can say what does not serve here any more.
func (n *nodeRun) noteAll(c *claim.Claim) {
	for _, dep := range n.departed() {
		if _, noted := c.Services[dep.key.String()]; !noted && !dep.entry {
			note(c, dep)
		}
	}
}

// end says in the claim that this run is over, so that the next one resumes at once. A claim that is another's by now is
// left alone, and so is one that the API does not let us reach: it is dead for others after a minute.
func (n *nodeRun) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	var taken *claim.TakenOver
	if err := n.held.End(ctx); err != nil && !errors.As(err, &taken) && !apierrors.IsNotFound(err) {
		n.emit(Warned{Text: fmt.Sprintf("the claim on node/%s still looks alive: %v; the next run waits %s, or --take-over",
			n.name, err, claim.DeadAfter)})
	}
}

// endWithin bounds the last calls of a run whose context has ended.
const endWithin = 5 * time.Second

func (n *nodeRun) isFinished() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.finished
}

func (n *nodeRun) evictedCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.evicted
}

// check reads the node before a group of evictions: still claimed by this run, cordoned and labelled.
func (n *nodeRun) check(ctx context.Context) error { return n.change(ctx, n.held.Check) }

// change carries out a call about the node itself.
func (n *nodeRun) change(ctx context.Context, call func(context.Context) error) error {
	return n.persist(ctx, func(ctx context.Context) error { return nodeError(call(ctx)) })
}

// nodeError turns the NotFound of a node into errNodeDeleted.
func nodeError(err error) error {
	if apierrors.IsNotFound(err) {
		return errNodeDeleted
	}
	return err
}

// cameBack reports pods that were evicted, came back to the cordoned node, and came back again.
func (n *nodeRun) cameBack(plan *guard.DrainPlan) error {
	var names []string
	for i := range plan.Pods {
		p := &plan.Pods[i]
		if p.Node != n.name || p.Action == guard.ActionSkip {
			continue
		}
		names = append(names, p.Key().String()+n.tolerance(p.UID))
	}
	slices.Sort(names)
	return &Unsettled{Node: n.name, What: "pods came back to the cordoned node again and are left alone: " + strings.Join(names, ", ")}
}

// tolerance says which toleration lets a pod run on a cordoned node.
func (n *nodeRun) tolerance(uid types.UID) string {
	_, snapshot := n.current()
	pod, ok := snapshot.Index(n.Hooks, nil).Pod(uid)
	if !ok {
		return ""
	}
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if t.Key == "" && t.Operator == "Exists" {
			return " (tolerates everything)"
		}
		if t.Key == unschedulableTaint {
			return " (tolerates " + unschedulableTaint + ")"
		}
	}
	return " (no toleration of " + unschedulableTaint + ": bound to the node by its spec)"
}

const unschedulableTaint = "node.kubernetes.io/unschedulable"
