package rolling

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// node is one node of a roll. While it is under way its fields belong to its own goroutine, but for running and done.
type node struct {
	*roll
	name string

	running      bool // its goroutine is at work; of the roll's goroutine, as done
	done         bool
	notBefore    time.Time
	refusedSince time.Time

	was      *Mark  // of an earlier run of the roll; nil: it has not been begun
	stands   string // the annotation as it is to stand on the node now; "": none
	mark     *Mark  // as this run has written it; nil: it has not
	claimed  string // the run whose claim stood on the node when this one began
	step     Step
	want     map[string]int // endpoints before, by Service
	started  time.Time
	ended    time.Time
	begun    bool // this run has marked it, and did not take that back at once
	deleted  bool
	parts    []guard.Step // of its turn, for the report
	drained  *drain.Result
	command  *CommandReport
	restored *drain.Restored
	err      error
}

func newNode(d *roll, name string) *node {
	n := &node{roll: d, name: name, was: d.state.marks[name], step: Waiting}
	if object := d.state.nodes[name]; object != nil {
		n.stands = object.Annotations[Annotation]
	}
	if n.was != nil {
		n.step, n.want = n.was.Step, n.was.Services
	}
	return n
}

// left reports whether an earlier run has left the node under way.
func (n *node) left() bool { return n.was != nil && n.mark == nil }

// begin sets the node, which this run has taken, going in a goroutine of its own.
func (n *node) begin(ctx context.Context) {
	n.running = true
	go func() {
		if n.err = n.steps(ctx); n.err != nil {
			n.err = n.leave(ctx, n.err)
		}
		n.ends <- n
	}()
}

// steps takes the node from where it is to the end of its turn.
func (n *node) steps(ctx context.Context) error {
	if n.step != Returning {
		if err := n.timed(ctx, "drain", n.drain); err != nil {
			return err
		}
		if err := n.runCommand(ctx); err != nil {
			return err
		}
		if err := n.moveTo(ctx, Returning); err != nil {
			return err
		}
	}
	if err := n.back(ctx); err != nil {
		return err
	}
	return n.timed(ctx, "cover", func(ctx context.Context) error { return n.during(ctx, n.covered) })
}

// take writes the first mark of this run. It fails with *TakenOver where the node got another one since it was read.
func (n *node) take(ctx context.Context) error {
	object, err := n.Client.CoreV1().Nodes().Get(ctx, n.name, getOptions)
	if apierrors.IsNotFound(err) {
		n.deleted = true
		return nil
	}
	if err != nil {
		return wrapNode(n.name, "read", err)
	}
	step := n.step
	if step == Waiting || step == Failed {
		step = Draining
	}
	mark := &Mark{
		Roll: n.state.id, Started: n.state.started, Holder: n.Holder, Work: n.state.work, Step: step, Run: n.NewID(),
		Renewed: n.now(), Services: n.want,
	}
	if object.Annotations[Annotation] != n.stands {
		return takenOver(object)
	}
	if err := n.marks.begin(ctx, object, mark); err != nil {
		return err
	}
	n.begun, n.claimed, n.mark, n.step, n.stands, n.started = true, claimRun(object), mark, step, mark.String(), n.Clock.Now()
	n.emit(Moved{Node: n.name, Step: step, Again: n.was != nil})
	return nil
}

// moveTo writes the next step into the mark.
func (n *node) moveTo(ctx context.Context, step Step) error {
	if n.deleted {
		return nil
	}
	err := n.write(ctx, func(m *Mark) { m.Step = step })
	if apierrors.IsNotFound(err) {
		n.deleted = true
		return nil
	}
	if err != nil {
		return err
	}
	n.step = step
	n.emit(Moved{Node: n.name, Step: step})
	return nil
}

// write changes the mark. It fails with *TakenOver when another process has written it since.
func (n *node) write(ctx context.Context, change func(*Mark)) error {
	next := *n.mark
	next.Renewed = n.now()
	change(&next)
	if err := n.marks.replace(ctx, n.name, n.stands, &next); err != nil {
		return err
	}
	n.mark, n.stands = &next, next.String()
	return nil
}

// leave says in the mark that this run is over with the node, or takes the mark off a node that is as it was before.
func (n *node) leave(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	var taken *TakenOver
	var later *notNow
	var failed *CommandError
	switch {
	case n.deleted, errors.As(err, &taken):
		return err
	case errors.As(err, &later) && n.was == nil:
		n.begun = false
		return errors.Join(err, n.unmark(ctx))
	case n.undone():
		return errors.Join(err, n.unmark(ctx))
	case n.opts.Drain.Rollback && (n.step == Running || n.step == Draining && n.drained != nil && n.drained.Outcome == drain.Done):
		return errors.Join(err, n.rollback(ctx))
	}
	return errors.Join(err, n.write(ctx, func(m *Mark) {
		m.Ended = n.now()
		if errors.As(err, &failed) {
			m.Step = Failed
		}
	}))
}

// leaveWithin bounds the last calls about a node.
const leaveWithin = 10 * time.Second

func (n *node) unmark(ctx context.Context) error {
	err := ignoreGone(n.marks.replace(ctx, n.name, n.stands, nil))
	if err == nil {
		n.mark, n.was, n.step, n.stands = nil, nil, Waiting, ""
	}
	return err
}

// undone reports whether a drain that did not end well has put the node back itself.
func (n *node) undone() bool {
	return n.opts.Drain.Rollback && n.drained != nil && n.drained.Outcome != drain.Done &&
		!slices.ContainsFunc(n.drained.Nodes, func(s drain.NodeState) bool { return s.Claimed })
}

// during does something that may take long, and shows meanwhile in the mark that this run lives. What is done ends early
// when the mark is another's by now.
func (n *node) during(ctx context.Context, work func(context.Context) error) error {
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- work(working) }()
	ticker := n.Clock.NewTicker(claim.RenewEvery)
	defer ticker.Stop()
	var lost error
	for {
		select {
		case err := <-done:
			if lost != nil {
				return lost
			}
			return err
		case <-ticker.C():
			var taken *TakenOver
			if err := n.write(ctx, func(*Mark) {}); errors.As(err, &taken) && lost == nil {
				lost = err
				cancel(err)
			}
		}
	}
}
