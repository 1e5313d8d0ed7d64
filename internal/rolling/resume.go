package rolling

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
)

// lookEvery is the time between two looks at the marks of a roll that may be at work.
const lookEvery = 2 * time.Second

// AtWork says that a roll of these nodes is under way in another process. Nothing was changed.
type AtWork struct {
	Node, Roll, Holder string
	Step               Step
}

func (e *AtWork) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("roll %s of %s has come to its end while this command watched it; run it again for another roll", e.Roll, e.Holder)
	}
	return fmt.Sprintf("roll %s of %s is at work: node %q is %s; wait for it, or end it there and run the command again", e.Roll, e.Holder, e.Node, e.Step)
}

// OtherWork says that another command's roll of these nodes is unfinished. Nothing was changed.
type OtherWork struct {
	Roll, Holder string
	Started      time.Time
	Done, All    int
}

func (e *OtherWork) Error() string {
	return fmt.Sprintf("roll %s of %s, begun %s with other nodes, another --run or another --uncordon, is unfinished: %d of these %d nodes are done; "+
		"--unfinished=resume goes on with it by this command, --unfinished=restart begins anew",
		e.Roll, e.Holder, e.Started.UTC().Format(time.RFC3339), e.Done, e.All)
}

// state is what the marks say of the roll at hand.
type state struct {
	id      string
	started time.Time
	work    string // of the roll: where it is not this command's own, the command does not end the roll
	resumed bool
	nodes   map[string]*corev1.Node // as last read
	marks   map[string]*Mark        // of this roll only
	former  []string                // nodes with marks that mean nothing any more
}

// open finds out which roll the command is about: the newest one on the nodes, unless that is complete. It changes nothing.
func (r *roll) open(ctx context.Context) (*state, error) {
	nodes, err := r.marks.read(ctx, r.opts.Nodes)
	if err != nil {
		return nil, err
	}
	if nodes, err = r.settle(ctx, nodes); err != nil {
		return nil, err
	}
	return r.judgeMarks(nodes)
}

// judgeMarks decides whether marks are those of a roll to go on with.
func (r *roll) judgeMarks(nodes map[string]*corev1.Node) (*state, error) {
	now := r.Clock.Now().UTC().Truncate(time.Second)
	s := &state{id: r.RunID, started: now, work: r.opts.work(), nodes: nodes, marks: map[string]*Mark{}}
	all, newest, err := marksOf(nodes)
	if err != nil {
		return nil, err
	}
	if newest == nil {
		return s, nil
	}
	of := map[string]*Mark{}
	done, complete := 0, false
	for name, m := range all {
		if m.Roll != newest.Roll {
			s.former = append(s.former, name)
			continue
		}
		of[name] = m
		complete = complete || m.Complete
		if m.Step == Done {
			done++
		}
	}
	over := complete || done == len(r.opts.Nodes)
	switch {
	case !over && newest.Work != s.work && r.opts.Unfinished == UnfinishedRefused:
		return nil, &OtherWork{Roll: newest.Roll, Holder: newest.Holder, Started: newest.Started, Done: done, All: len(r.opts.Nodes)}
	case over, r.opts.Unfinished == UnfinishedRestart:
		// A roll is newer than every one before it, whatever the clocks say.
		if !s.started.After(newest.Started) {
			s.started = newest.Started.Add(time.Second)
		}
		for name := range of {
			s.former = append(s.former, name)
		}
	default:
		s.id, s.started, s.work, s.resumed, s.marks = newest.Roll, newest.Started, newest.Work, true, of
	}
	slices.Sort(s.former)
	return s, nil
}

// marksOf reads all marks, and finds one of the newest roll.
func marksOf(nodes map[string]*corev1.Node) (all map[string]*Mark, newest *Mark, err error) {
	all = map[string]*Mark{}
	for name, node := range nodes {
		m, err := markOf(node)
		if err != nil {
			return nil, nil, err
		}
		if m == nil {
			continue
		}
		all[name] = m
		if newest == nil || newest.order(m) < 0 {
			newest = m
		}
	}
	return all, newest, nil
}

// settle waits until no other process can be at work on the nodes: marks that stand still for a minute are those of a dead
// one, as with claims; --take-over says so.
func (r *roll) settle(ctx context.Context, nodes map[string]*corev1.Node) (map[string]*corev1.Node, error) {
	seen, err := atWork(nodes)
	if err != nil || len(seen) == 0 || r.opts.Drain.TakeOver {
		return nodes, err
	}
	for _, name := range slices.Sorted(keys(seen)) {
		m := seen[name]
		r.emit(Warned{Text: fmt.Sprintf("node/%s is %s in roll %s of %s; watching for up to %s whether that lives (--take-over goes on at once)",
			name, m.Step, m.Roll, m.Holder, claim.DeadAfter)})
	}
	started := r.Clock.Now()
	for len(seen) > 0 && r.Clock.Since(started) < claim.DeadAfter {
		if err := r.pause(ctx, lookEvery); err != nil {
			return nil, err
		}
		if nodes, err = r.marks.read(ctx, r.opts.Nodes); err != nil {
			return nil, err
		}
		if err := alive(nodes, seen); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// alive returns *AtWork when marks show that a process wrote them since they were seen at work, and did not end in order. Of
// those seen it keeps the ones that may still be at work.
func alive(nodes map[string]*corev1.Node, seen map[string]*Mark) error {
	all, _, err := marksOf(nodes)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(keys(all)) {
		m, before := all[name], seen[name]
		switch {
		case m.atWork() && (before == nil || before.String() != m.String()), m.Step == Done && before != nil:
			return &AtWork{Node: name, Roll: m.Roll, Holder: m.Holder, Step: m.Step}
		case !m.atWork():
			delete(seen, name)
		}
	}
	for _, name := range slices.Sorted(keys(seen)) {
		if all[name] == nil && nodes[name] != nil {
			return &AtWork{Node: name, Roll: seen[name].Roll, Holder: seen[name].Holder}
		}
		if nodes[name] == nil {
			delete(seen, name)
		}
	}
	return nil
}

// atWork are the marks of nodes that a process may be at work at.
func atWork(nodes map[string]*corev1.Node) (map[string]*Mark, error) {
	all, _, err := marksOf(nodes)
	for name, m := range all {
		if !m.atWork() {
			delete(all, name)
		}
	}
	return all, err
}
