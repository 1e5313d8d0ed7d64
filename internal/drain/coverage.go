package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// replacementPoll is the shortest time between two looks at the cluster while replacements are waited for.
const (
	replacementPoll    = 2 * time.Second
	replacementMaxPoll = 10 * time.Second
)

// left counts for some Services the usable endpoints that stay now, on nodes their balancer sends to or could. Services
// that are gone or no longer of policy Local are left out. Readers at the same time share one look at the cluster.
func (d *run) leftOf(ctx context.Context, keys []guard.Key) (map[guard.Key]int, error) {
	ch := d.reading.DoChan("load", func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, loadWithin)
		defer cancel()
		s, err := d.loadAgain(ctx)
		if err != nil {
			return nil, err
		}
		return d.index(s, d.opts.Nodes), nil
	})
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case res := <-ch:
		if res.Err != nil {
			return nil, res.Err
		}
		return countLeft(res.Val.(view), d, keys), nil
	}
}

// loadAgain looks at the cluster again, for those nodes of the run that are still there: one that was deleted meanwhile is
// found out by whoever drains it, and is no matter for the others.
func (d *run) loadAgain(ctx context.Context) (*cluster.Snapshot, error) {
	s, err := d.Load(ctx, d.opts.Nodes)
	var deleted *cluster.NotFound
	if !errors.As(err, &deleted) {
		return s, err
	}
	there := slices.DeleteFunc(slices.Clone(d.opts.Nodes), func(name string) bool { return slices.Contains(deleted.Names, name) })
	return d.Load(ctx, there)
}

// loadWithin bounds one look at the cluster.
const loadWithin = 2 * time.Minute

func countLeft(ix view, d *run, keys []guard.Key) map[guard.Key]int {
	loss := &guard.Loss{
		Nodes: map[string]bool{}, Run: d.RunID, StayUp: d.opts.StayUp, Evicted: map[types.UID]bool{}, Flags: &d.opts.Flags,
	}
	for _, name := range d.opts.Nodes {
		loss.Nodes[name] = true
	}
	left := map[guard.Key]int{}
	for _, key := range keys {
		if svc, ok := ix.Service(key); ok && svc.Local() {
			plan := guard.JudgeService(svc, ix, loss)
			left[key] = plan.Endpoints.After
		}
	}
	return left
}

// covered fails when one of the Services that had endpoints elsewhere when the drain was judged has none now. It returns
// how many each has left.
func (n *nodeRun) covered(ctx context.Context, keys ...guard.Key) (map[guard.Key]int, error) {
	plan, _ := n.current()
	had := map[guard.Key]bool{}
	for i := range plan.Services {
		had[plan.Services[i].Key()] = plan.Services[i].Endpoints.After > 0
	}
	var left map[guard.Key]int
	err := n.persist(ctx, func(ctx context.Context) (err error) {
		left, err = n.leftOf(ctx, keys)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the other nodes of %s: %w", keyNames(keys), err)
	}
	var lost []string
	for key, count := range left {
		if count == 0 && had[key] {
			lost = append(lost, key.String())
		}
	}
	if len(lost) == 0 {
		return left, nil
	}
	slices.Sort(lost)
	return left, &OtherLoses{Node: n.name, Services: lost}
}

func keyNames(keys []guard.Key) string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.String()
	}
	return strings.Join(names, ", ")
}

// localServices lists the Services of the plan that have something on the node and are reached from outside.
func (n *nodeRun) localServices(plan *guard.DrainPlan) []guard.Key {
	var keys []guard.Key
	for i := range plan.Services {
		s := &plan.Services[i]
		if slices.ContainsFunc(s.Nodes, func(r guard.NodeRow) bool { return r.Name == n.name && r.Before != guard.StateEmpty }) {
			keys = append(keys, s.Key())
		}
	}
	return keys
}

// expect notes, before the pods of a plan go, how many endpoints each Service of the node is to have again: those that
// stay, and one for every evicted endpoint whose owner replaces it, but no more than there were.
func (n *nodeRun) expect(plan *guard.DrainPlan) {
	_, snapshot := n.current()
	ix := snapshot.Index(n.Hooks, n.opts.Nodes)
	for i := range plan.Services {
		s := &plan.Services[i]
		svc, ok := ix.Service(s.Key())
		if !ok {
			continue
		}
		replaced := 0
		for uid := range endpointsOn(svc, n.name) {
			pod, ok := ix.Pod(uid)
			if ok && n.goes(plan, uid) && slices.ContainsFunc(pod.OwnerReferences, isReplacing) {
				replaced++
			}
		}
		if replaced -= n.surgedFor(s.Key()); replaced > 0 {
			n.coverage[s.Key()] = min(s.Endpoints.Before, s.Endpoints.After+replaced)
		}
	}
}

func (n *nodeRun) goes(plan *guard.DrainPlan, uid types.UID) bool {
	return slices.ContainsFunc(plan.Pods, func(p guard.PodPlan) bool {
		return p.UID == uid && p.Action != guard.ActionSkip
	})
}

// endpointsOn are the pods behind the ready endpoints of a Service on a node.
func endpointsOn(svc *guard.ServiceFacts, node string) map[types.UID]bool {
	out := map[types.UID]bool{}
	for i := range svc.Ports {
		for _, e := range svc.Ports[i].Endpoints {
			if e.Node == node && e.Pod != "" && e.Ready && !e.Terminating {
				out[e.Pod] = true
			}
		}
	}
	return out
}

// waitReplacements waits until every Service that lost endpoints on the node has them again elsewhere.
func (n *nodeRun) waitReplacements(ctx context.Context) error {
	keys := make([]guard.Key, 0, len(n.coverage))
	for key := range n.coverage {
		keys = append(keys, key)
	}
	if len(keys) == 0 || n.deleted {
		return nil
	}
	slices.SortFunc(keys, guard.Key.Compare)
	end := n.step("replacements", n.name, "")
	stop := newStopper()
	defer stop.follow(n.run.stop)()
	defer stop.after(n.Clock, n.opts.Timeout, &TimedOut{Node: n.name, After: n.opts.Timeout})()
	for delay := replacementPoll; ; delay = min(delay*2, replacementMaxPoll) {
		left, err := n.leftOf(ctx, keys)
		missing := n.missing(left)
		if err == nil && len(missing) == 0 {
			end(nil, "")
			return nil
		}
		if why := stop.pause(ctx, n.Clock, delay); why != nil {
			err := fmt.Errorf("replacements are not Ready (%s): %w", strings.Join(missing, ", "), why)
			end(err, "")
			return err
		}
	}
}

// missing lists the Services with fewer endpoints than are to be there, with both numbers.
func (n *nodeRun) missing(left map[guard.Key]int) []string {
	var out []string
	for key, want := range n.coverage {
		if have, ok := left[key]; ok && have < want {
			out = append(out, fmt.Sprintf("%s %d of %d", key, have, want))
		}
	}
	slices.Sort(out)
	return out
}
