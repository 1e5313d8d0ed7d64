// Package feed follows a live cluster and keeps a cluster.Store up to date.
//
// It runs reflectors, which LIST once and then watch, straight into the Store: no informer keeps a second copy of what the
// Store holds in its own, smaller form. No pods are followed but the agents of balancers.
package feed

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const (
	// rediscovery is how often the cluster is asked which kinds of balancers it has by now.
	rediscovery = 2 * time.Minute
	firstRetry  = time.Second
	jitter      = 0.2
)

// Feed follows a cluster.
type Feed struct {
	clients *cluster.Clients
	store   *cluster.Store
	hooks   []lbhooks.Description
	log     *slog.Logger

	base       []*atomic.Bool // whether each kind that the rules read was listed
	discovered atomic.Bool    // whether the hooks' kinds are known

	mu      sync.Mutex
	follows map[cluster.Watch]*follow
}

// follow is one kind of the hooks that is followed.
type follow struct {
	synced *atomic.Bool
	stop   context.CancelFunc
}

// New returns a Feed; nothing is followed before Run.
func New(clients *cluster.Clients, store *cluster.Store, hooks []lbhooks.Description, log *slog.Logger) *Feed {
	return &Feed{clients: clients, store: store, hooks: hooks, log: log, follows: map[cluster.Watch]*follow{}}
}

// NeedLeaderElection is false: every replica follows the cluster.
func (*Feed) NeedLeaderElection() bool { return false }

// Start follows the cluster until ctx ends.
func (f *Feed) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	f.rules(ctx, &running)
	for {
		pause := rediscovery
		if err := safely.Call(func() error { return f.discover(ctx, &running) }); err != nil && ctx.Err() == nil {
			f.log.Error("cannot find out which balancers there are; trying again", "error", err)
			if !f.discovered.Load() {
				pause = firstRetry
			}
		}
		timer := time.NewTimer(wait.Jitter(pause, jitter))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// Synced reports whether every kind was listed once.
func (f *Feed) Synced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.base) == 0 || !f.discovered.Load() {
		return false
	}
	for _, synced := range f.base {
		if !synced.Load() {
			return false
		}
	}
	for _, w := range f.follows {
		if !w.synced.Load() {
			return false
		}
	}
	return true
}

// rules follows the kinds that the rules read.
func (f *Feed) rules(ctx context.Context, running *sync.WaitGroup) {
	k := f.clients.Kubernetes
	core, discovery, apps := k.CoreV1().RESTClient(), k.DiscoveryV1().RESTClient(), k.AppsV1().RESTClient()
	nodes := newSink(trimmed(f.store, f.store.SetNode), func(key guard.Key) { f.store.DeleteNode(key.Name) })
	services := newSink(trimmed(f.store, f.store.SetService), f.store.DeleteService)
	slices := newSink(packed(f.store), f.store.DeleteSlice)
	daemonSets := newSink(trimmed(f.store, f.store.SetDaemonSet), f.store.DeleteDaemonSet)
	namespaces := newSink(trimmed(f.store, f.store.SetNamespace), func(key guard.Key) { f.store.DeleteNamespace(key.Name) })
	f.mu.Lock()
	f.base = []*atomic.Bool{&nodes.synced, &services.synced, &slices.synced, &namespaces.synced, &daemonSets.synced}
	f.mu.Unlock()
	for _, r := range []*reflection{
		{"nodes", lister(core, "nodes"), &corev1.Node{}, nodes, nil},
		{"services", lister(core, "services"), &corev1.Service{}, services, nil},
		{"endpointslices", lister(discovery, "endpointslices"), &discoveryv1.EndpointSlice{}, slices, nil},
		{"namespaces", lister(core, "namespaces"), &corev1.Namespace{}, namespaces, nil},
		{"daemonsets", lister(apps, "daemonsets"), &appsv1.DaemonSet{}, daemonSets, nil},
	} {
		f.reflect(ctx, running, r)
	}
}

// trimmed takes objects that the store keeps as they are, less what nobody reads.
func trimmed[T any](store *cluster.Store, set func(T)) func(T) taken {
	return func(object T) taken {
		store.Trim(object)
		return func() { set(object) }
	}
}

func packed(store *cluster.Store) func(*discoveryv1.EndpointSlice) taken {
	return func(s *discoveryv1.EndpointSlice) taken {
		key, small := guard.Key{Namespace: s.Namespace, Name: s.Name}, store.PackSlice(s)
		return func() { store.SetPackedSlice(key, small) }
	}
}

func lister(client rest.Interface, resource string) cache.ListerWatcher {
	return cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// target is what a reflector fills.
type target interface {
	cache.ReflectorStore
	// lost says that a fault may have swallowed something: the target does not count as filled until the next Replace.
	lost()
}

// reflection is one kind to follow.
type reflection struct {
	name    string
	from    cache.ListerWatcher
	example runtime.Object
	into    target
	after   func() // once it is over; may be nil
}

// reflect follows one kind until ctx ends.
func (f *Feed) reflect(ctx context.Context, running *sync.WaitGroup, r *reflection) {
	log := logr.FromSlogHandler(f.log.Handler())
	reflector := cache.NewReflectorWithOptions(r.from, r.example, r.into, cache.ReflectorOptions{Name: r.name, Logger: &log})
	running.Go(func() {
		_ = safely.Run(ctx, "the feed of "+r.name, f.log, func(ctx context.Context) error { // it ends with ctx only
			whole := false
			defer func() {
				if !whole {
					r.into.lost()
				}
			}()
			reflector.RunWithContext(ctx) // after a panic it begins with a LIST
			whole = true
			return nil
		})
		if r.after != nil {
			safely.Do("the end of the feed of "+r.name, f.log, r.after)
		}
	})
}

// discover finds out which kinds the hooks read here, follows the new ones and forgets those that are gone.
func (f *Feed) discover(ctx context.Context, running *sync.WaitGroup) error {
	found, err := f.clients.Watched(ctx, f.hooks)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	still := map[cluster.Watch]bool{}
	for _, w := range found.Watches {
		still[w] = true
		if f.follows[w] == nil {
			f.follows[w] = f.follow(ctx, running, w)
			f.log.Info("following objects of a balancer", "resource", w.Resource.String(), "labels", w.Labels)
		}
	}
	for w, followed := range f.follows {
		if !still[w] {
			followed.stop()
			delete(f.follows, w)
			f.log.Info("the objects of a balancer are gone", "resource", w.Resource.String(), "labels", w.Labels)
		}
	}
	f.store.SetUnavailable(found.Unavailable)
	f.discovered.Store(true)
	return nil
}

// follow follows one kind of the hooks until its kind is gone or ctx ends.
func (f *Feed) follow(ctx context.Context, running *sync.WaitGroup, w cluster.Watch) *follow {
	ctx, stop := context.WithCancel(ctx)
	if w.Labels != "" {
		agents := newSink(trimmed(f.store, f.store.SetAgent), f.store.DeleteAgent)
		from := cache.NewFilteredListWatchFromClient(f.clients.Kubernetes.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
			func(o *metav1.ListOptions) { o.LabelSelector = w.Labels })
		f.reflect(ctx, running, &reflection{"agents " + w.Labels, from, &corev1.Pod{}, agents, agents.clear})
		return &follow{&agents.synced, stop}
	}
	objects := newSink(
		trimmed(f.store, func(u *unstructured.Unstructured) { f.store.SetCustom(w.Kind, u) }),
		func(key guard.Key) { f.store.DeleteCustom(w.Kind, key) },
	)
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(w.Resource.GroupVersion().WithKind(w.Kind.Kind))
	f.reflect(ctx, running, &reflection{w.Resource.Resource, f.custom(w), example, objects, objects.clear})
	return &follow{&objects.synced, stop}
}

func (f *Feed) custom(w cluster.Watch) cache.ListerWatcher {
	client := f.clients.Dynamic.Resource(w.Resource)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = w.Fields
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = w.Fields
			return client.Watch(ctx, o)
		},
	}
}
