// Package withdraw takes nodes that others empty out of their balancers, so that the evictions that the gate holds can go
// on, and puts them back when they stay after all.
//
// How a node is claimed, withdrawn, proven and returned is internal/drain's; here is decided when, and it is said on the Node.
package withdraw

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Holder is who holds the gate's claims.
const Holder = guard.GateHolder

// Options are the times of a Controller; [Defaults] has good ones.
type Options struct {
	HookTimeout time.Duration // of each proof
	// Keep is how long a refused eviction counts: so long a cordoned node is withdrawn for it, and a withdrawn one stays out
	// for whoever tries again.
	Keep time.Duration
	// Closing is how long an eviction that was let go may still take; see drain.ReturnOptions.
	Closing     time.Duration
	WaitTimeout time.Duration // for pods that come to a node that returns
	Retry       time.Duration // first pause after a withdrawal or return that did not come to its end
	RetryMost   time.Duration // longest
	Workers     int           // nodes at a time
	// AcceptUnproven are the Services, as of --accept-unproven, that leave without a proof after a time.
	AcceptUnproven []string
}

// Defaults are the options for a cluster.
func Defaults() Options {
	return Options{
		HookTimeout: time.Minute, Keep: 15 * time.Minute, Closing: 35 * time.Second, WaitTimeout: 2 * time.Minute,
		Retry: 10 * time.Second, RetryMost: time.Minute, Workers: 16, AcceptUnproven: []string{"all"},
	}
}

// Recorder takes events; the recorder of client-go's tools/events satisfies it.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Machines knows the machines behind nodes.
type Machines interface {
	// Deleting reports whether the machine of a node is being deleted.
	Deleting(node *corev1.Node) bool
	// Waits reports whether its drain then waits for the gate.
	Waits(node *corev1.Node) bool
	// Release lets that drain begin.
	Release(ctx context.Context, node *corev1.Node) error
}

// Controller withdraws and returns nodes. Its exported fields are set before Run; only one runs in a cluster.
type Controller struct {
	Client kubernetes.Interface
	Store  *cluster.Store // filled before Run
	// Runner returns what carries out one run; RunID, Holder and Emit are set by the Controller.
	Runner   func() *drain.Runner
	Machines Machines // may be nil
	// Wanted, if set, reports whether evictions of a Service's pods are refused at all; a node without such a Service is not
	// withdrawn. Nil: each Service that is reached from outside with policy Local.
	Wanted  func(*cluster.StoreView, *guard.ServiceFacts) bool
	Events  Recorder // may be nil
	Log     *slog.Logger
	Clock   clock.WithTicker
	Options Options
	// Outcome, if set, is told how each withdrawal and return ended: proven, unproven, refused, failed, returned.
	Outcome func(string)

	mu     sync.Mutex
	queue  workqueue.TypedDelayingInterface[string] // nodes
	told   map[string]map[string]string             // by node and by what it is about: the last event
	pauses map[string]pause
}

// pause is the time after a failure in which the same is not tried again on a node, whatever changes there: what was
// tried has changed it.
type pause struct {
	act   act
	until time.Time
	tries int
}

// Run works until ctx ends; a withdrawal under way stops where it is and is gone on with by whoever runs next.
func (c *Controller) Run(ctx context.Context) error {
	changes, cancel := c.Store.Subscribe()
	defer cancel()
	c.mu.Lock()
	c.told, c.pauses = map[string]map[string]string{}, map[string]pause{}
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "withdrawals"})
	c.queue = queue
	c.mu.Unlock()
	c.Store.Read(func(v *cluster.StoreView) {
		for n := range v.Nodes() {
			queue.Add(n.Name)
		}
	})
	var workers sync.WaitGroup
	defer workers.Wait()
	defer queue.ShutDown()
	for range max(1, c.Options.Workers) {
		workers.Go(func() {
			for c.next(ctx, queue) {
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes.Ready():
			change := changes.Take()
			for _, name := range change.Nodes {
				queue.Add(name)
			}
			if len(change.Services) > 0 || change.Objects {
				for _, name := range c.emptied() {
					queue.Add(name)
				}
			}
		}
	}
}

// emptied lists the nodes that somebody empties. What serves there may turn up in the Store after that does: each kind has a
// watch of its own.
func (c *Controller) emptied() []string {
	var all []*corev1.Node
	c.Store.Read(func(v *cluster.StoreView) {
		for n := range v.Nodes() {
			if raw, ok := v.RawNode(n.Name); ok {
				all = append(all, raw)
			}
		}
	})
	var out []string
	for _, n := range all {
		if held, err := claim.Of(n); err == nil && c.leaving(n, held) != "" {
			out = append(out, n.Name)
		}
	}
	return out
}

// Node says that something about a node changed that the Store does not show: its machine.
func (c *Controller) Node(name string) {
	c.mu.Lock()
	queue := c.queue
	c.mu.Unlock()
	if queue != nil {
		queue.Add(name)
	}
}

// afterPanic is when a node is looked at again with which something went wrong that must not.
const afterPanic = time.Minute

// next works on one node; false when the queue has shut down. The queue hands out a node to one worker at a time.
func (c *Controller) next(ctx context.Context, queue workqueue.TypedDelayingInterface[string]) bool {
	name, over := queue.Get()
	if over {
		return false
	}
	defer queue.Done(name)
	again := afterPanic
	err := safely.Call(func() (err error) {
		again, err = c.Reconcile(ctx, name)
		return err
	})
	if ctx.Err() != nil {
		return true
	}
	if err != nil {
		c.Log.Warn("a node is not as it should be; trying again", "node", name, "in", again.String(), "error", err)
	}
	if again > 0 {
		queue.AddAfter(name, again)
	}
	return true
}

// Reconcile does what is to be done about one node now, which may take minutes, and returns when to look again; 0: not
// before something changes.
func (c *Controller) Reconcile(ctx context.Context, name string) (time.Duration, error) {
	var node *corev1.Node
	c.Store.Read(func(v *cluster.StoreView) {
		if n, ok := v.RawNode(name); ok {
			node = n.DeepCopy()
		}
	})
	if node == nil {
		c.forget(name)
		return 0, nil
	}
	if d := c.due(node); d.act == actNone {
		return d.again, nil
	}
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}) // the Store may lag behind what was done
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	d := c.due(node)
	switch d.act {
	case actWithdraw:
		err = c.withdraw(ctx, node, d.why)
	case actReturn:
		err = c.bringBack(ctx, node)
	case actRelease:
		err = c.Machines.Release(ctx, node)
	case actTidy:
		err = c.tidy(ctx, node)
	case actNone:
		return d.again, nil
	}
	if err == nil {
		c.succeeded(name)
		return 0, nil
	}
	return c.failed(name, d.act), err
}

// due is what is to be done about a node, unless that failed a moment ago: then it has to wait.
func (c *Controller) due(node *corev1.Node) decision {
	d := c.decide(node)
	if left := c.pausing(node.Name, d.act); left > 0 {
		return decision{again: left}
	}
	return d
}

// pausing is for how long an act is not to be tried on a node.
func (c *Controller) pausing(node string, a act) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pauses[node]
	if !ok || p.act != a {
		return 0
	}
	return max(p.until.Sub(c.Clock.Now()), 0)
}

// failed begins a pause, twice as long as the one before, and returns how long it is.
func (c *Controller) failed(node string, a act) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pauses[node]
	if p.act != a {
		p = pause{act: a}
	}
	wait := c.Options.Retry
	for range p.tries {
		wait = min(2*wait, c.Options.RetryMost)
	}
	p.tries++
	p.until = c.Clock.Now().Add(wait)
	if c.pauses == nil {
		c.pauses = map[string]pause{}
	}
	c.pauses[node] = p
	return wait
}

func (c *Controller) succeeded(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pauses, node)
}
