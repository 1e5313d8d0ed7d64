// Package manners keeps to what other controllers ask of those who want a say before a node goes: cluster-autoscaler's
// annotation that delays the deletion of a machine, and Cluster API's hook before its drain.
//
// Both are set in advance, on nodes with endpoints of Services that a balancer sends to, because both are read only when the
// deletion begins; and both are taken away on change only.
package manners

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// fieldManager is the name under which manners are written.
const fieldManager = "safedrain-gate"

// Options are the times; [Defaults] has good ones.
type Options struct {
	Settle  time.Duration // how long changes are gathered before they are looked at
	Resync  time.Duration // after which every node is looked at although nothing changed
	Retry   time.Duration // first pause after a write that failed
	Workers int
}

// Defaults are the options for a cluster.
func Defaults() Options {
	return Options{Settle: time.Second, Resync: 10 * time.Minute, Retry: time.Second, Workers: 4}
}

// maxRetry is the longest pause after a write that failed.
const maxRetry = time.Minute

// needs reports whether somebody has to wait before the machine of a node goes: the node has endpoints, be it terminating
// ones, of a Service of policy Local behind a balancer.
func needs(v *cluster.StoreView, node string, wanted func(*cluster.StoreView, *guard.ServiceFacts) bool) bool {
	for svc := range v.ReachedServicesOn(node) {
		if svc.Rotation.Hook != "" && !svc.Rotation.Nobody && (wanted == nil || wanted(v, svc)) {
			return true
		}
	}
	return false
}

// released reports whether a claim says that its node left every rotation it had to.
func released(c *guard.Claim) bool {
	if c == nil || !c.Ended {
		return false
	}
	for _, s := range c.Services {
		if !s.Released {
			return false
		}
	}
	return true
}

// nodes calls look for every node, and again when something about it or its Services changes.
type nodes struct {
	store   *cluster.Store
	clock   clock.WithTicker
	log     *slog.Logger
	options Options
	look    func(ctx context.Context, node string) error
	queue   workqueue.TypedRateLimitingInterface[string]
}

func newNodes(store *cluster.Store, clk clock.WithTicker, log *slog.Logger, o Options,
	look func(ctx context.Context, node string) error,
) *nodes {
	return &nodes{
		store: store, clock: clk, log: log, options: o, look: look,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](o.Retry, maxRetry)),
	}
}

// run works until ctx ends.
func (n *nodes) run(ctx context.Context) {
	changes, cancel := n.store.Subscribe()
	defer cancel()
	n.all()
	var workers sync.WaitGroup
	defer workers.Wait()
	defer n.queue.ShutDown()
	for range max(1, n.options.Workers) {
		workers.Go(func() {
			for n.next(ctx) {
			}
		})
	}
	resync := n.clock.NewTicker(n.options.Resync)
	defer resync.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-resync.C():
			n.all()
		case <-changes.Ready():
			n.changed(changes.Take())
		}
	}
}

func (n *nodes) next(ctx context.Context) bool {
	name, over := n.queue.Get()
	if over {
		return false
	}
	defer n.queue.Done(name)
	if err := safely.Call(func() error { return n.look(ctx, name) }); err != nil && ctx.Err() == nil {
		n.log.Warn("a node is not marked as it should be; trying again", "node", name, "error", err)
		n.queue.AddRateLimited(name)
		return true
	}
	n.queue.Forget(name)
	return true
}

func (n *nodes) add(name string) { n.queue.AddAfter(name, n.options.Settle) }

func (n *nodes) all() {
	n.store.Read(func(v *cluster.StoreView) {
		for node := range v.Nodes() {
			n.add(node.Name)
		}
	})
}

// changed looks at the nodes that changed and at those of the Services that did. Which node a Service is on no longer,
// nothing says: those that are leaving are looked at in any case, and the others have time until the next resync.
func (n *nodes) changed(change cluster.Change) {
	for _, name := range change.Nodes {
		n.add(name)
	}
	if len(change.Services) == 0 {
		return
	}
	names := map[string]bool{}
	for _, key := range change.Services {
		n.store.Read(func(v *cluster.StoreView) {
			svc, ok := v.ReachedService(key)
			if !ok {
				return
			}
			for i := range svc.Ports {
				for k := range svc.Ports[i].Endpoints {
					names[svc.Ports[i].Endpoints[k].Node] = true
				}
			}
		})
	}
	n.store.Read(func(v *cluster.StoreView) {
		for node := range v.Nodes() {
			if node.Leaving != guard.Stays {
				names[node.Name] = true
			}
		}
	})
	delete(names, "")
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n.add(name)
	}
}

// nodeOf returns a node as the Store has it, nil when it is not there.
func nodeOf(v *cluster.StoreView, name string) (*corev1.Node, *guard.NodeFacts) {
	node, ok := v.RawNode(name)
	facts, known := v.Node(name)
	if !ok || !known {
		return nil, nil
	}
	return node, facts
}
