package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
)

// reserve is kept between the end of the longest grace period and the deadline: for requests, and for kubelets that are late.
const reserve = 10 * time.Second

// Late says that, because the deadline was near, pods were evicted without what was to come before: those of a Service
// without a proof that the node left its rotation, or those of a workload without their replacement.
type Late struct {
	Node     string
	Service  string
	Hook     string
	Workload string // whose replacement was not there; "" where a proof was missing
	Cause    error
}

func (e *Late) Error() string {
	if e.Workload != "" {
		return fmt.Sprintf("the replacement of %s was not there in time for the deadline, its pods on node %q had to go without it: %v",
			e.Workload, e.Node, e.Cause)
	}
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
	n.cutoff, longest = n.cutoffOf(plan)
	if longest != nil && n.run.started.After(n.cutoff) {
		n.emit(Warned{Text: fmt.Sprintf("the deadline of %s is shorter than the grace period of pod %s, %s, with a reserve of %s: it goes at once, proven or not",
			n.opts.Deadline, longest.Key(), longest.Grace, reserve)})
	}
}

// cutoffOf is when the pods of a plan that wait for a Service have to go, and the one of them that takes longest to end; nil
// where none waits.
func (n *nodeRun) cutoffOf(plan *guard.DrainPlan) (time.Time, *guard.PodPlan) {
	var longest *guard.PodPlan
	for i := range plan.Pods {
		p := &plan.Pods[i]
		if p.Node == n.name && len(p.After) > 0 && (longest == nil || p.Grace > longest.Grace) {
			longest = p
		}
	}
	at := n.run.started.Add(n.opts.Deadline - reserve)
	if longest != nil {
		at = at.Add(-longest.Grace)
	}
	return at, longest
}

// firstCutoff is the earliest cutoff of the run's nodes; zero without a deadline.
func (d *run) firstCutoff() time.Time {
	var first time.Time
	if d.opts.Deadline <= 0 {
		return first
	}
	plan, _ := d.current()
	for _, n := range d.nodes {
		if at, _ := n.cutoffOf(plan); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// replacedBy is when replacements have to be there: with a deadline the time is to be left that proofs may take, unless that
// is more than half of it. Zero without a deadline.
func (d *run) replacedBy() time.Time {
	by := d.firstCutoff()
	if by.IsZero() {
		return by
	}
	return by.Add(-min(d.opts.HookTimeout, max(0, by.Sub(d.started)/2)))
}

// goWithout notes, with a deadline, that a replacement is not there in time: the pods of its workload go without it. Every
// other error is returned.
func (n *nodeRun) goWithout(workload string, err error) error {
	var failed *surge.Failed
	var refusal *Refusal
	if n.opts.Deadline <= 0 || n.run.stop.Err() != nil || !errors.As(err, &failed) && !errors.As(err, &refusal) {
		return err
	}
	cause := err
	if failed != nil {
		cause = errors.New(failed.Why)
	}
	n.mu.Lock()
	n.lates = append(n.lates, &Late{Node: n.name, Workload: workload, Cause: cause})
	n.mu.Unlock()
	n.emit(Warned{Text: fmt.Sprintf("the replacement of %s is not there in time for the deadline, its pods go without it: %v", workload, cause)})
	return nil
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
	return dep.stated == nil && !n.opts.Flags.AcceptsUnproven(dep.key, ok && (r.Broken != "" || r.Alone != ""))
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
