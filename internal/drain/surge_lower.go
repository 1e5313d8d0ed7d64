package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
)

// surgeOf returns the surge that the eviction of a pod ends; nil when there is none, or when it is being ended.
func (d *run) surgeOf(uid types.UID) *raisedSurge {
	for _, s := range d.standing() {
		if s.pods[uid] {
			return s
		}
	}
	return nil
}

// used takes a replica back as soon as the eviction of a pod of its workload is accepted: the ReplicaSet is to have as many
// as before, and the one that it starts for the evicted pod meanwhile is not Ready, so that it goes first.
func (q *queue) used(ctx context.Context, uid types.UID) {
	s := q.n.surgeOf(uid)
	if s == nil {
		return
	}
	q.spawn(func() func(context.Context) {
		err := q.n.lower(ctx, s, true)
		return func(context.Context) {
			if err != nil && q.n.stop.Err() == nil {
				q.n.emit(Warned{Text: err.Error() + "; trying again at the end"})
			}
		}
	})
}

// lower takes a replica back and has the claim forget it. evicted: a pod of the workload is on its way out, so that the
// ReplicaSet has a fresh one to take; else the one goes that is missed least.
func (n *nodeRun) lower(ctx context.Context, s *raisedSurge, evicted bool) error {
	n.run.mu.Lock()
	begun := s.lowered
	s.lowered = true
	n.run.mu.Unlock()
	if begun {
		return nil
	}
	end := n.step("unsurge", n.name, strings.Join(s.services, ","))
	err := n.persist(ctx, func(ctx context.Context) error { return n.unraise(ctx, s.Lever, n.name, evicted) })
	if err == nil {
		err = s.node.forgetSurge(ctx, s.Lever)
	}
	end(err, s.Title())
	if err == nil {
		return nil
	}
	n.run.mu.Lock()
	s.lowered = false
	n.run.mu.Unlock()
	return fmt.Errorf("take the replica of %s back: %w", s.Title(), err)
}

// unraise puts a number back, on behalf of a node.
func (r *Runner) unraise(ctx context.Context, l surge.Lever, node string, evicted bool) error {
	b := r.bringer()
	var victim *corev1.Pod
	if !evicted {
		ix, err := r.around(ctx, node)
		if err != nil {
			return err
		}
		if victim, err = b.Victim(ctx, l, ix); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	lowered, err := b.Lower(ctx, l, victim)
	if err != nil {
		return err
	}
	if lowered.Note != "" {
		r.emit(Warned{Text: lowered.Note})
	}
	if lowered.Back {
		r.emit(Unsurged{Node: node, Workload: l.Title()})
	}
	return nil
}

// around is the cluster as it is for a node, be it that this is gone; "": for none.
func (r *Runner) around(ctx context.Context, node string) (*cluster.Index, error) {
	nodes := slices.DeleteFunc([]string{node}, func(name string) bool { return name == "" })
	snapshot, err := r.Load(ctx, nodes)
	var gone *cluster.NotFound
	if errors.As(err, &gone) {
		nodes = nil
		snapshot, err = r.Load(ctx, nodes)
	}
	if err != nil {
		return nil, err
	}
	return snapshot.Index(r.Hooks, nodes), nil
}

// forgetSurge has the claim of a node forget a surge that no longer stands.
func (n *nodeRun) forgetSurge(ctx context.Context, l surge.Lever) error {
	err := n.change(ctx, func(ctx context.Context) error {
		return n.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Remove(l.Set()) })
	})
	if errors.Is(err, errNodeDeleted) {
		return nil
	}
	return err
}

// lowerRest takes back the replicas that no eviction of this node has ended: their pods went otherwise.
func (n *nodeRun) lowerRest(ctx context.Context) error {
	for _, s := range n.standing() {
		if s.node != n {
			continue
		}
		if err := n.lower(ctx, s, false); err != nil {
			return err
		}
	}
	return nil
}

// lowerDeleted takes back the replicas for nodes that were deleted meanwhile: the pods that they stand in for are lost, and
// are the first to go.
func (d *run) lowerDeleted(ctx context.Context) error {
	for _, n := range d.nodes {
		if !n.isFinished() {
			continue
		}
		if err := n.lowerRest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// surgedFor counts the replicas behind a Service that will be taken back.
func (d *run) surgedFor(key guard.Key) int {
	count := 0
	for _, s := range d.standing() {
		if slices.Contains(s.services, key.String()) {
			count++
		}
	}
	return count
}

// hopeless reports whether a run ends because a replica did not come, before it changed anything but its claims and its
// replicas: then nothing is kept.
func (d *run) hopeless(err error) bool {
	var failed *surge.Failed
	var refusal *Refusal
	return (errors.As(err, &failed) || errors.As(err, &refusal)) && d.stop.Err() == nil && d.begunNothing()
}

// begunNothing reports whether no node was withdrawn from anything, by this run or an earlier one.
func (d *run) begunNothing() bool {
	return !slices.ContainsFunc(d.nodes, func(n *nodeRun) bool {
		c := n.held.Claim()
		return n.held.Was != nil && len(n.held.Was.Services) > 0 || len(c.Services) > 0 || n.evictedCount() > 0
	})
}
