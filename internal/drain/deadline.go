package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedrain/safedrain/pkg/guard"
)

// reserve is kept between the end of the longest grace period and the deadline: for requests, and for kubelets that are late.
const reserve = 10 * time.Second

// Late says that the pods of a Service were evicted without a proof that the node left its rotation, because the node's
// deadline was near.
type Late struct {
	Node    string
	Service string
	Hook    string
	Cause   error
}

func (e *Late) Error() string {
	return fmt.Sprintf("%s was not proven out of %s on node %q in time for the deadline, its pods were evicted without proof: %v",
		e.Service, e.Hook, e.Node, e.Cause)
}

// Unwrap returns why.
func (e *Late) Unwrap() error { return e.Cause }

// setCutoff reckons when the pods of a plan that wait for a Service have to go, proven or not, so that the longest of their
// grace periods ends before the deadline.
func (n *nodeRun) setCutoff(plan *guard.DrainPlan) {
	if n.opts.Deadline <= 0 {
		return
	}
	var longest *guard.PodPlan
	for i := range plan.Pods {
		p := &plan.Pods[i]
		if p.Node == n.name && len(p.After) > 0 && (longest == nil || p.Grace > longest.Grace) {
			longest = p
		}
	}
	deadline := n.run.started.Add(n.opts.Deadline)
	n.cutoff = deadline.Add(-reserve)
	if longest == nil {
		return
	}
	n.cutoff = n.cutoff.Add(-longest.Grace)
	if late := n.run.started.Sub(n.cutoff); late > 0 {
		n.emit(Warned{Text: fmt.Sprintf("the deadline of %s is shorter than the grace period of pod %s, %s, with a reserve of %s: it goes at once, proven or not",
			n.opts.Deadline, longest.Key(), longest.Grace, reserve)})
	}
}

// inTime is how long something may be waited for that may take d: d, and with a deadline no longer than until the cutoff.
func (n *nodeRun) inTime(d time.Duration) time.Duration {
	if n.opts.Deadline <= 0 {
		return d
	}
	return max(0, min(d, n.cutoff.Sub(n.Clock.Now())))
}

// proofTime is how long a proof may take; with a deadline it is waited for to the last.
func (n *nodeRun) proofTime(dep *departure) time.Duration {
	if n.opts.Deadline <= 0 {
		return dep.timeout
	}
	return max(time.Millisecond, n.cutoff.Sub(n.Clock.Now()))
}

// leaveInTime is leave, and with a deadline lets the pods of a Service go at the cutoff whatever is proven.
func (n *nodeRun) leaveInTime(ctx context.Context, dep *departure) error {
	if n.opts.Deadline <= 0 || dep.entry {
		return n.leave(ctx, dep)
	}
	var err error
	switch {
	case dep.way == wayForced: // nobody else serves it: it serves on as long as it can
		if err := n.untilCutoff(ctx); err != nil {
			return err
		}
		return n.leave(ctx, dep)
	case dep.way == waySettle && n.byDeadlineAlone(dep):
		if err = n.callWithdraw(ctx, dep); err == nil {
			err = n.notOut(dep, errors.New("nothing can prove it"))
		}
	default:
		if err = n.leave(ctx, dep); err == nil && dep.cut {
			err = n.notOut(dep, fmt.Errorf("proven, and not settled for %s", dep.settle))
		}
	}
	var notOut *NotOut
	var loses *OtherLoses
	if !errors.As(err, &notOut) && !errors.As(err, &loses) {
		return err
	}
	if why := n.untilCutoff(ctx); why != nil {
		return errors.Join(why, err)
	}
	return n.goLate(ctx, dep, err)
}

// byDeadlineAlone reports whether nobody but the deadline accepts that a departure is not proven.
func (n *nodeRun) byDeadlineAlone(dep *departure) bool {
	r, ok := n.rotation(dep.key)
	return dep.stated == nil && !n.opts.Flags.AcceptsUnproven(dep.key, ok && r.Broken != "")
}

func (n *nodeRun) untilCutoff(ctx context.Context) error {
	return n.stop.pause(ctx, n.Clock, n.cutoff.Sub(n.Clock.Now()))
}

// goLate lets the pods of a Service go without a proof, and notes why.
func (n *nodeRun) goLate(ctx context.Context, dep *departure, why error) error {
	cause := why
	var notOut *NotOut
	if errors.As(why, &notOut) {
		cause = notOut.Cause
	}
	dep.late = true
	n.mu.Lock()
	n.lates = append(n.lates, &Late{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Cause: cause})
	n.mu.Unlock()
	n.emit(NotProven{Node: n.name, Service: dep.key.String(), Hook: dep.hookName, Accepted: "by the deadline"})
	return n.letGo(ctx, dep)
}

// tooLate returns what was evicted without a proof.
func (n *nodeRun) tooLate() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.lates...)
}
