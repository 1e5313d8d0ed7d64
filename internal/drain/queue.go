package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
)

// inFlight bounds the evictions of one node that are under way at the same time.
const inFlight = 25

// queue evicts the pods of one pass. One goroutine owns its state: calls, departures and the watch hand it what they
// learned. A pod that is held waits apart and holds nobody.
type queue struct {
	n          *nodeRun
	departures []*departure
	pods       map[types.UID]*podState
	order      []*podState // as in the plan

	posts     chan func(context.Context)
	seen      chan podSeen
	watching  bool                    // every pod that goes from now on will be seen to go
	calls     int                     // evictions under way
	pending   int                     // departures and checks under way
	waiting   map[string]bool         // Services that pods wait for
	failed    map[string]error        // Services that did not let the node go
	busy      map[guard.Key]types.UID // serial Services with a pod that is on its way out
	pause     time.Time               // nothing is begun before
	throttles int
	fatal     error
	heartbeat time.Time
}

func newQueue(n *nodeRun, plan *guard.DrainPlan, departures []*departure) *queue {
	q := &queue{
		n: n, departures: departures, pods: map[types.UID]*podState{},
		posts: make(chan func(context.Context), inFlight+len(departures)+8), seen: make(chan podSeen),
		waiting: map[string]bool{}, failed: map[string]error{}, busy: map[guard.Key]types.UID{},
	}
	for _, d := range departures {
		if !d.entry {
			q.waiting[d.key.String()] = true
		}
	}
	for i := range plan.Pods {
		p := &plan.Pods[i]
		if p.Node != n.name || p.Action == guard.ActionSkip && !p.Waiting || p.Action == guard.ActionRefuse && !p.Waiting {
			continue
		}
		q.add(p)
	}
	n.mu.Lock()
	for uid, p := range q.pods {
		n.pods[uid] = p
	}
	n.mu.Unlock()
	n.expect(plan)
	return q
}

// add puts a pod where it starts.
func (q *queue) add(p *guard.PodPlan) {
	s := &podState{plan: p, stage: stageReady}
	switch {
	case p.Waiting:
		s.stage = stageLeaving
	case slices.ContainsFunc(p.After, func(name string) bool { return q.waiting[name] }):
		s.stage = stageGated
	}
	for _, d := range append(slices.Clone(q.departures), q.n.departed()...) {
		if d.serial() && slices.Contains(p.After, d.key.String()) {
			s.serial = append(s.serial, d.key)
		}
	}
	q.pods[p.UID] = s
	q.order = append(q.order, s)
}

// departed lists the departures of earlier passes.
func (n *nodeRun) departed() []*departure {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*departure
	for _, d := range n.out {
		out = append(out, d)
	}
	return out
}

// run returns when every pod is gone and every departure is over, or when the work is to stop. Calls in flight are
// finished before it returns.
func (q *queue) run(ctx context.Context) error {
	end := q.n.step("evict", q.n.name, "")
	watching, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	terminating := slices.ContainsFunc(q.order, func(p *podState) bool { return p.stage == stageLeaving })
	if len(q.order) > 0 {
		go func() { defer close(watched); q.n.watchPods(watching, terminating, q.seen) }()
	} else {
		close(watched)
	}
	q.heartbeat = q.n.Clock.Now()
	q.announce(nil)
	for _, d := range q.departures {
		q.spawn(func() func(context.Context) {
			err := q.n.leaveInTime(ctx, d)
			return func(context.Context) { q.departed(d, err) }
		})
	}
	err := q.loop(ctx)
	cancel()
	q.settleCalls(ctx)
	<-watched
	end(err, "")
	return err
}

// spawn runs work beside the queue and hands its outcome to the loop.
func (q *queue) spawn(work func() func(context.Context)) {
	q.pending++
	go func() {
		apply := work()
		q.posts <- func(ctx context.Context) {
			q.pending--
			apply(ctx)
		}
	}()
}

func (q *queue) loop(ctx context.Context) error {
	for {
		q.launch(ctx)
		if q.fatal != nil {
			return q.fatal
		}
		if q.over() {
			return q.verdict()
		}
		timer := q.n.Clock.NewTimer(q.nextLook())
		select {
		case apply := <-q.posts:
			apply(ctx)
		case s := <-q.seen:
			q.saw(ctx, s)
		case <-timer.C():
			q.look(ctx)
		case <-q.n.stop.Done():
			timer.Stop()
			return q.n.stop.Err()
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// settleCalls waits for what is under way; departures notice by themselves that the work stopped.
func (q *queue) settleCalls(ctx context.Context) {
	if q.fatal != nil || q.calls+q.pending > 0 {
		q.n.stop.end(cmpErr(q.fatal, errInterrupted))
	}
	for q.calls+q.pending > 0 {
		(<-q.posts)(ctx)
	}
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// over reports whether nothing is awaited any more.
func (q *queue) over() bool {
	if q.calls+q.pending > 0 {
		return false
	}
	return !slices.ContainsFunc(q.order, func(p *podState) bool { return !p.stage.over() })
}

// launch begins as many evictions as may be under way. A serial Service has one pod on its way out at a time.
func (q *queue) launch(ctx context.Context) {
	now := q.n.Clock.Now()
	if !q.watching || q.n.stop.Err() != nil || q.fatal != nil || now.Before(q.pause) {
		return
	}
	for _, p := range q.order {
		if q.calls >= inFlight {
			return
		}
		if p.stage != stageReady || now.Before(p.due) || q.serialBusy(p) {
			continue
		}
		for _, key := range p.serial {
			q.busy[key] = p.plan.UID
		}
		if p.began.IsZero() {
			p.began = now
		}
		p.stage = stageInFlight
		q.calls++
		go func() {
			err := q.n.remove(ctx, p.plan)
			a := classify(p.plan, err)
			if a.kind == answerConflict {
				a = q.n.reread(ctx, p.plan, a)
			}
			q.posts <- func(ctx context.Context) { q.calls--; q.answered(ctx, p, a) }
		}()
	}
}

func (q *queue) serialBusy(p *podState) bool {
	return slices.ContainsFunc(p.serial, func(key guard.Key) bool {
		uid, ok := q.busy[key]
		return ok && uid != p.plan.UID
	})
}

// reread resolves a conflict: the pod is gone only if another one, or none, bears its name.
func (d *run) reread(ctx context.Context, p *guard.PodPlan, a answer) answer {
	pod, err := d.read(ctx, p)
	switch {
	case err == nil && pod.UID != p.UID:
		return answer{kind: answerGone}
	case err != nil && classify(p, err).kind == answerGone:
		return answer{kind: answerGone}
	}
	return a
}

// departed lets the pods of a Service go, or withholds them.
func (q *queue) departed(d *departure, err error) {
	name := d.key.String()
	var notOut *NotOut
	switch {
	case err == nil:
		delete(q.waiting, name)
		if !d.entry {
			q.announce([]string{name})
		}
		return
	case errors.As(err, &notOut):
		q.failed[name] = err
	case q.n.stop.Err() != nil:
		return
	default:
		q.fatal = err
		return
	}
	for _, p := range q.order {
		if p.stage == stageGated && slices.Contains(p.plan.After, name) {
			p.stage = stageWithheld
			p.blocked = fmt.Sprintf("%s, not proven out of %s", name, d.hookName)
		}
	}
}

// announce frees the pods that wait for nothing more, and says so.
func (q *queue) announce(after []string) {
	freed, gated := 0, 0
	for _, p := range q.order {
		waits := slices.ContainsFunc(p.plan.After, func(name string) bool { return q.waiting[name] })
		switch {
		case p.stage == stageGated && !waits:
			p.stage = stageReady
			freed++
		case p.stage == stageReady && after == nil:
			freed++
		case p.stage == stageGated:
			gated++
		}
	}
	if freed > 0 {
		q.n.emit(Wave{Node: q.n.name, Pods: freed, Waiting: gated, After: after})
	}
}

// verdict is what the pass came to once nothing is awaited.
func (q *queue) verdict() error {
	var all []error
	for _, d := range q.departures {
		if err := q.failed[d.key.String()]; err != nil {
			all = append(all, err)
		}
	}
	for _, p := range q.order {
		if p.stage == stageFailed {
			all = append(all, &Unsettled{
				Node: q.n.name, What: fmt.Sprintf("pod %s: %s: %s", p.plan.Key(), p.last.by, p.last.what),
			})
		}
	}
	return errors.Join(all...)
}
