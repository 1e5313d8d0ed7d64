package drain

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// unconfirmedAfter is how long past its deletion time a pod on a silent node is waited for.
const unconfirmedAfter = 30 * time.Second

// look lets go of pods that need not be waited for, and shows a sign of life once a minute.
func (q *queue) look(ctx context.Context) {
	now := q.n.Clock.Now()
	silent := q.n.unreachable()
	for _, p := range q.order {
		if p.stage != stageLeaving || p.deletion.IsZero() {
			continue
		}
		skip := q.n.opts.SkipWaitForDeleteTimeout
		switch {
		case skip > 0 && now.Sub(p.deletion) > skip:
			p.stage = stageSkipped
			q.n.emit(Warned{Text: "pod " + p.plan.Key().String() + " is terminating for longer than " + skip.String() + " and is not waited for"})
		case silent && now.Sub(p.deletion) >= unconfirmedAfter:
			p.stage = stageSkipped
			q.n.emit(Warned{Text: "pod " + p.plan.Key().String() + ": its end is not confirmed by the kubelet of " + q.n.name + ", which is silent"})
		}
	}
	for _, p := range q.order {
		if p.stage == stageSkipped {
			q.freeSerial(ctx, p)
		}
	}
	if now.Sub(q.heartbeat) >= time.Minute {
		q.heartbeat = now
		q.n.emit(q.sign())
	}
}

// unreachable reports whether the kubelet was silent when the node was last seen; renewing the claim shows it again.
func (n *nodeRun) unreachable() bool {
	return slices.ContainsFunc(n.held.Node().Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
}

// nextLook is when something is due without anybody's doing.
func (q *queue) nextLook() time.Duration {
	now := q.n.Clock.Now()
	next := time.Minute
	for _, p := range q.order {
		switch {
		case p.stage == stageReady && now.Before(p.due):
			next = min(next, p.due.Sub(now))
		case p.stage == stageLeaving && !p.deletion.IsZero():
			next = min(next, time.Second)
		}
	}
	if now.Before(q.pause) {
		next = q.pause.Sub(now)
	}
	return max(next, time.Millisecond)
}

// sign is the sign of life of a run that waits.
func (q *queue) sign() Waiting {
	now := q.n.Clock.Now()
	w := Waiting{
		Node: q.n.name, Total: len(q.order), Elapsed: now.Sub(q.n.started), Timeout: q.n.opts.Timeout,
		Blocked: blockedBy(q.order),
	}
	for _, p := range q.order {
		switch p.stage {
		case stageGone, stageSkipped:
			w.Gone++
		case stageLeaving:
			w.Terminating++
			if left := p.deletion.Sub(now); w.Longest == (guard.Key{}) || left > w.LongestRemaining {
				w.Longest, w.LongestRemaining = p.plan.Key(), max(left, 0)
			}
		}
	}
	return w
}

// errText is the server's words as an error.
type errText string

func (e errText) Error() string { return string(e) }

// blockedBy groups pods by what holds them, sorted.
func blockedBy(pods []*podState) []Blocked {
	groups := map[string]*Blocked{}
	byName := slices.SortedFunc(slices.Values(pods), func(a, b *podState) int {
		return compareText(a.plan.Key().String(), b.plan.Key().String())
	})
	for _, p := range byName {
		by, held := p.heldBy()
		if !held && p.stage != stageFailed && p.stage != stageWithheld {
			continue
		}
		if !held {
			by = p.blocked
		}
		g := groups[by]
		if g == nil {
			g = &Blocked{By: by}
			groups[by] = g
		}
		g.Pods = append(g.Pods, p.plan.Key().String())
		if p.last.what != "" && !slices.Contains(g.Details, p.last.what) {
			g.Details = append(g.Details, p.last.what)
		}
	}
	var out []Blocked
	for _, g := range groups {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b Blocked) int { return compareText(a.By, b.By) })
	return out
}
