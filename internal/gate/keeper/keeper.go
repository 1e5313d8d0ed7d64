// Package keeper marks pods: of those that serve a Service of externalTrafficPolicy Local on one node, one is the keeper, which
// the gate lets go only when the node has left rotation and which scale-downs take last.
//
// Which pods are marked decides guard.Keepers; here pods are read, live, and patched. What is read depends on what changed:
// the pods of nodes with two or more endpoints of a Service, no others, and none while nothing changes.
package keeper

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// EvictionTakes bounds how long an eviction may take from its review on: the API server ends every request that creates
// after 34 seconds, whatever its webhooks and budgets do (requestTimeoutUpperBound in k8s.io/apiserver).
const EvictionTakes = 34 * time.Second

// Options are the times of a Controller; [Defaults] has good ones.
type Options struct {
	After   time.Duration // how long a mark stands before it is relied on; more than an eviction takes
	Settle  time.Duration // how long changes are gathered before they are looked at
	Resync  time.Duration // after which all pods in question are read although nothing changed
	Workers int           // namespaces at a time
}

// Defaults are the options for a cluster.
func Defaults() Options {
	return Options{After: EvictionTakes + time.Second, Settle: time.Second, Resync: 30 * time.Minute, Workers: 4}
}

// Recorder takes events; the recorder of client-go's tools/events satisfies it.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Controller marks pods. Its exported fields are set before Run; only one runs in a cluster.
type Controller struct {
	Client   kubernetes.Interface
	Metadata metadata.Interface
	Store    *cluster.Store // filled before Run
	// Wanted, if set, reports whether a Service that is reached from outside with policy Local is to have keepers; all are.
	Wanted  func(v *cluster.StoreView, svc *guard.ServiceFacts) bool
	Events  Recorder // may be nil
	Log     *slog.Logger
	Clock   clock.WithTicker
	Options Options
	// Count, if set, is told how many ports of Services have a keeper, node by node.
	Count func(int)

	mu     sync.Mutex
	queue  workqueue.TypedRateLimitingInterface[string] // namespaces
	dirty  map[string]map[string]bool                   // by namespace the Services to look at
	places map[place]*placeState
	stood  map[guard.Key]bool // Services that the costs of others were told of
}

const (
	// maxRetry is the longest pause after a look that failed.
	maxRetry = 15 * time.Second
	// recheck is how long changes of balancers are gathered, each of which may change every rotation.
	recheck = 30 * time.Second
	// soon and later are how many times Options.Settle the pods of a place rest that are likely to change without a word from
	// their slices.
	soon, later = 3, 10
)

// Run works until ctx ends. It finds the marks of those who ran before, then looks at every Service once, and from then on
// at those that change.
func (c *Controller) Run(ctx context.Context) error {
	changes, cancel := c.Store.Subscribe()
	defer cancel()
	c.reset()
	if err := c.learn(ctx); err != nil {
		return err
	}
	c.all()
	var workers sync.WaitGroup
	defer workers.Wait()
	defer c.queue.ShutDown()
	for range max(1, c.Options.Workers) {
		workers.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	resync := c.Clock.NewTicker(c.Options.Resync)
	defer resync.Stop()
	var turned <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-resync.C():
			c.forget(func(place) bool { return true })
			c.all()
		case <-turned:
			turned = nil
			c.all()
		case <-changes.Ready():
			change := changes.Take()
			c.changed(change)
			if change.Objects && turned == nil {
				turned = c.Clock.After(recheck)
			}
		}
	}
}

func (c *Controller) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "keepers"},
	)
	c.dirty, c.places, c.stood = map[string]map[string]bool{}, map[place]*placeState{}, map[guard.Key]bool{}
}

// changed looks at what changed. The pods of a node where an eviction was refused are read anew: somebody may have taken a
// mark away.
func (c *Controller) changed(change cluster.Change) {
	for _, key := range change.Services {
		c.service(key)
	}
	for _, name := range change.Nodes {
		var keys []guard.Key
		refused := ""
		c.Store.Read(func(v *cluster.StoreView) {
			if node, ok := v.RawNode(name); ok {
				refused = node.Annotations[claim.AnnotationRefused]
			}
			keys = v.ReachedOn(name)
		})
		if refused != "" {
			c.forget(func(p place) bool { return p.node == name })
		}
		for _, key := range keys {
			c.service(key)
		}
	}
}

// service makes a Service one to look at.
func (c *Controller) service(key guard.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dirty[key.Namespace] == nil {
		c.dirty[key.Namespace] = map[string]bool{}
	}
	c.dirty[key.Namespace][key.Name] = true
	c.queue.AddAfter(key.Namespace, c.Options.Settle)
}

// forget makes the pods of places be read although nobody else serves there than before.
func (c *Controller) forget(which func(place) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, state := range c.places {
		if which(p) {
			state.read = false
		}
	}
}

// all makes every Service one to look at, and those that only marks still name.
func (c *Controller) all() {
	var keys []guard.Key
	c.Store.Read(func(v *cluster.StoreView) { keys = v.Reached() })
	c.mu.Lock()
	for at, state := range c.places {
		for i := range state.marked {
			for name := range strings.SplitSeq(state.marked[i].marks, ",") {
				keys = append(keys, guard.Key{Namespace: at.namespace, Name: name})
			}
		}
	}
	c.mu.Unlock()
	for _, key := range keys {
		c.service(key)
	}
}

// next looks at one namespace; false when the queue has shut down.
func (c *Controller) next(ctx context.Context) bool {
	namespace, over := c.queue.Get()
	if over {
		return false
	}
	defer c.queue.Done(namespace)
	var again time.Duration
	err := safely.Call(func() (err error) {
		again, err = c.reconcile(ctx, namespace)
		return err
	})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.Log.Error("the keepers of a namespace are not as they should be; trying again", "namespace", namespace, "error", err)
		c.queue.AddRateLimited(namespace)
	default:
		c.queue.Forget(namespace)
		if again > 0 {
			c.queue.AddAfter(namespace, again)
		}
	}
	return true
}

// reconcile looks at the Services of a namespace that changed, and at the places where a mark is to go. It returns when to
// look again, 0 for not before something changes. A queue hands out a namespace to one worker at a time.
func (c *Controller) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	c.mu.Lock()
	dirty := c.dirty[namespace]
	delete(c.dirty, namespace)
	c.mu.Unlock()
	done := false
	defer func() {
		if !done { // an error, or a panic
			c.redo(namespace, dirty)
		}
	}()
	again, err := c.carryOut(ctx, c.work(namespace, dirty))
	done = err == nil
	return again, err
}

// redo makes Services of a namespace ones to look at once more.
func (c *Controller) redo(namespace string, dirty map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dirty[namespace] == nil {
		c.dirty[namespace] = map[string]bool{}
	}
	maps.Copy(c.dirty[namespace], dirty)
}

// carryOut reads the pods of each place, decides, and writes.
func (c *Controller) carryOut(ctx context.Context, work []placeWork) (again time.Duration, err error) {
	if len(work) == 0 {
		return 0, nil
	}
	began := c.Clock.Now()
	pods, err := c.read(ctx, work)
	if err != nil {
		return 0, err
	}
	read := c.Clock.Now()
	foreign := foreignOwners(pods)
	var errs []error
	for i := range work {
		w := &work[i]
		request := w.request(pods, foreign)
		request.Since, request.Began, request.Read, request.After = c.since(w.place), began, read, c.Options.After
		plan := guard.Keepers(request)
		complete := true
		for j := range plan.Changes {
			switch err := c.write(ctx, pods[plan.Changes[j].UID], &plan.Changes[j]); {
			case errors.Is(err, errChanged):
				complete = false
			case err != nil:
				complete, errs = false, append(errs, err)
			}
		}
		c.standDown(w, plan.StandDown, pods)
		lags := w.lags(request)
		c.remember(w, &plan, pods, &placeState{read: complete && !lags, again: len(plan.Changes) > 0 || lags})
		if len(plan.Changes) > 0 {
			again = soonest(again, c.Options.Settle)
		}
		if lags {
			again = soonest(again, later*c.Options.Settle)
		}
		if orphaned(&plan, pods) {
			again = soonest(again, soon*c.Options.Settle)
		}
		for _, since := range plan.Since {
			again = soonest(again, max(since.Add(c.Options.After).Sub(read), 0)+c.Options.Settle)
		}
	}
	c.count()
	return again, errors.Join(errs...)
}

func soonest(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
