package drain

import (
	"context"
	"slices"
	"time"

	"github.com/safedrain/safedrain/pkg/guard"
)

// answered applies an answer to the pod that it is about.
func (q *queue) answered(ctx context.Context, p *podState, a answer) {
	if p.stage != stageInFlight {
		return // the watch saw it go meanwhile
	}
	p.stage = stageReady
	if a.kind != p.last.kind {
		p.tries = 0
	}
	p.tries++
	p.last = a
	now := q.n.Clock.Now()
	if a.kind != answerPassing && a.kind != answerConflict {
		p.failing = time.Time{}
	} else if p.failing.IsZero() {
		p.failing = now
	}
	switch a.kind {
	case answerAccepted:
		q.accepted(p)
		q.used(ctx, p.plan.UID)
	case answerGone:
		q.gone(p)
	case answerForbidden:
		q.fatal = &Denied{What: "evict pod " + p.plan.Key().String(), Cause: errText(a.what)}
	case answerBadPod:
		q.failedFor(p)
	case answerThrottled:
		q.throttled(now, a.after)
	case answerPassing:
		if q.n.opts.Timeout == 0 && now.Sub(p.failing) > passingFor {
			q.failedFor(p)
			return
		}
		p.due = now.Add(retryAfter(a, p.tries))
		if p.tries > 2 {
			q.block(p, a.by)
		}
	case answerHeld, answerDenied, answerTerminating, answerConflict:
		p.due = now.Add(retryAfter(a, p.tries))
		if a.kind != answerConflict {
			q.block(p, a.by)
		}
	}
	if a.kind != answerThrottled {
		q.throttles = 0
	}
	if p.stage == stageReady && !p.deletion.IsZero() {
		p.stage = stageLeaving // somebody else deleted it
	}
	q.freeSerial(ctx, p)
}

// throttled makes everybody pause. Of calls that were under way together one counts: the others tell nothing new.
func (q *queue) throttled(now time.Time, after time.Duration) {
	if !now.Before(q.pause) {
		q.throttles++
	}
	until := now.Add(jitter(max(after, doubled(throttleWait, q.throttles, passingMax))))
	if until.After(q.pause) {
		q.pause = until
	}
}

// accepted: the pod is on its way out, and the watch will see it go.
func (q *queue) accepted(p *podState) {
	p.stage, p.blocked = stageLeaving, ""
	q.n.mu.Lock()
	q.n.evicted++
	q.n.mu.Unlock()
	q.n.emit(PodEvicted{Node: q.n.name, Pod: p.plan.Key(), Deleted: p.plan.Action == guard.ActionDelete})
}

// gone: the pod of this UID has left the node, by whatever means.
func (q *queue) gone(p *podState) {
	if p.stage.over() {
		return
	}
	p.stage, p.blocked = stageGone, ""
	took := time.Duration(0)
	if !p.began.IsZero() {
		took = q.n.Clock.Since(p.began)
	}
	q.n.emit(PodGone{Node: q.n.name, Pod: p.plan.Key(), Took: took})
}

// failedFor gives a pod up, and with it the pods of the same Services that were not begun.
func (q *queue) failedFor(p *podState) {
	p.stage = stageFailed
	q.block(p, p.last.by)
	for _, o := range q.order {
		shared := slices.ContainsFunc(o.plan.After, func(name string) bool { return slices.Contains(p.plan.After, name) })
		if shared && (o.stage == stageReady || o.stage == stageGated) {
			o.stage, o.last = stageFailed, p.last
			q.block(o, p.last.by)
		}
	}
}

// block says once, and again when it changes, who holds a pod.
func (q *queue) block(p *podState, by string) {
	if p.blocked == by {
		return
	}
	p.blocked = by
	q.n.emit(PodBlocked{Node: q.n.name, Pod: p.plan.Key(), By: by})
}

// freeSerial lets the next pod of a serial Service go once this one is gone and the Service's other nodes still serve. A
// pod that is merely held does not keep its turn.
func (q *queue) freeSerial(ctx context.Context, p *podState) {
	for _, key := range p.serial {
		if q.busy[key] != p.plan.UID {
			continue
		}
		switch p.stage {
		case stageReady, stageFailed:
			delete(q.busy, key)
		case stageGone, stageSkipped:
			q.busy[key] = "looking"
			if q.n.stop.Err() != nil {
				continue
			}
			q.spawn(func() func(context.Context) {
				err := q.n.between(ctx, key)
				return func(context.Context) {
					if err != nil && q.n.stop.Err() == nil {
						q.fatal = err
					}
					delete(q.busy, key)
				}
			})
		}
	}
}

// between looks at a Service between two of its pods: covered elsewhere, and where replacements are waited for, one more
// endpoint there than when the last pod went, or as many as there are to be in the end.
func (n *nodeRun) between(ctx context.Context, key guard.Key) error {
	if _, err := n.covered(ctx, key); err != nil || !n.opts.WaitReplacements {
		return err
	}
	want := n.gonePods(key)
	for delay := replacementPoll; ; delay = min(delay*2, replacementMaxPoll) {
		left, err := n.leftOf(ctx, []guard.Key{key})
		if have, ok := left[key]; err == nil && (!ok || have >= want) {
			return nil
		}
		if err := n.stop.pause(ctx, n.Clock, delay); err != nil {
			return err
		}
	}
}

// gonePods is how many endpoints a Service is to have elsewhere now that some of its pods have gone.
func (n *nodeRun) gonePods(key guard.Key) int {
	plan, _ := n.current()
	after := 0
	for i := range plan.Services {
		if plan.Services[i].Key() == key {
			after = plan.Services[i].Endpoints.After
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	gone := 0
	for _, p := range n.pods {
		if slices.Contains(p.serial, key) && p.stage == stageGone {
			gone++
		}
	}
	return min(after+gone, max(n.coverage[key], after))
}

// saw applies what the watch says.
func (q *queue) saw(ctx context.Context, s podSeen) {
	q.watching = true
	if s.all == nil {
		if p := q.pods[s.uid]; p != nil {
			q.sawPod(ctx, p, s.gone, s.deletion)
		}
		return
	}
	for _, p := range q.order {
		deletion, there := s.all[p.plan.UID]
		q.sawPod(ctx, p, !there, deletion)
	}
	q.look(ctx)
}

func (q *queue) sawPod(ctx context.Context, p *podState, gone bool, deletion time.Time) {
	if p.stage.over() && p.stage != stageFailed && p.stage != stageWithheld {
		return
	}
	if gone {
		if p.stage.over() {
			p.stage = stageReady // it was given up, and went by itself
		}
		q.gone(p)
	} else {
		p.deletion = deletion
		if !deletion.IsZero() && (p.stage == stageReady || p.stage == stageGated) {
			p.stage, p.blocked = stageLeaving, ""
		}
	}
	q.freeSerial(ctx, p)
}
