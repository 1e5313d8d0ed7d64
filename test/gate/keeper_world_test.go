package gate

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// small is the part of a shared cluster that one test sees: its nodes, and the Services of its namespace, in a Store as the
// gate has it. The controllers under test run on that Store and on the real API server.
type small struct {
	*controlplane.Env
	config   *rest.Config
	nodes    []string
	store    *cluster.Store
	balancer *balancer
	events   *events
	writes   *writes
}

// newSmall makes a test parallel and gives it nodes and a Store that follows them.
func newSmall(t *testing.T, nodes int, mutate ...func(*corev1.Node)) *small {
	t.Helper()
	t.Parallel()
	c := shared.get(t)
	s := &small{Env: c.Env(t), balancer: &balancer{}, events: &events{}, writes: &writes{}}
	s.config = rest.CopyConfig(c.Config())
	s.config.QPS = -1
	s.config.Wrap(func(next http.RoundTripper) http.RoundTripper { return s.writes.through(next) })
	s.nodes = s.Nodes(nodes, mutate...)
	s.store = cluster.NewStore(s.balancer)
	s.follow(t)
	return s
}

// follow fills the Store and keeps it up to date.
func (s *small) follow(t *testing.T) {
	own := informers.NewSharedInformerFactoryWithOptions(s.Client, 0, informers.WithNamespace(s.Namespace))
	nodes := informers.NewSharedInformerFactoryWithOptions(s.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = controlplane.PoolLabel + "=" + s.Namespace
	}))
	var synced []cache.InformerSynced
	add := func(i cache.SharedIndexInformer, set, remove func(any)) {
		h, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: set, UpdateFunc: func(_, o any) { set(o) },
			DeleteFunc: func(o any) {
				if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				remove(o)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		synced = append(synced, h.HasSynced)
	}
	add(nodes.Core().V1().Nodes().Informer(),
		func(o any) { s.store.SetNode(o.(*corev1.Node).DeepCopy()) },
		func(o any) { s.store.DeleteNode(o.(*corev1.Node).Name) })
	add(own.Core().V1().Services().Informer(),
		func(o any) { s.store.SetService(o.(*corev1.Service).DeepCopy()) },
		func(o any) { s.store.DeleteService(keyOf(o.(*corev1.Service))) })
	add(own.Discovery().V1().EndpointSlices().Informer(),
		func(o any) { s.store.SetSlice(o.(*discoveryv1.EndpointSlice).DeepCopy()) },
		func(o any) { s.store.DeleteSlice(keyOf(o.(*discoveryv1.EndpointSlice))) })
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); own.Shutdown(); nodes.Shutdown() })
	own.Start(stop)
	nodes.Start(stop)
	if !cache.WaitForCacheSync(t.Context().Done(), synced...) {
		t.Fatal("the Store is not filled")
	}
}

// seen waits until the Store has as many Ready endpoints of a Service as there are to be.
func (s *small) seen(service string, ready int) {
	s.Helper()
	s.Wait("the Store knows the endpoints of "+service, func(context.Context) (bool, string, error) {
		n := 0
		s.store.Read(func(v *cluster.StoreView) {
			if svc, ok := v.Service(guard.Key{Namespace: s.Namespace, Name: service}); ok && len(svc.Ports) > 0 {
				for _, e := range svc.Ports[0].Endpoints {
					if e.Ready && !e.Terminating {
						n++
					}
				}
			}
		})
		return n == ready, fmt.Sprintf("%d of %d", n, ready), nil
	})
}

func keyOf(o metav1.Object) guard.Key {
	return guard.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// run runs a controller until the test ends or the returned function is called.
func (s *small) run(c interface{ Run(context.Context) error }) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("a controller ended: %v", err)
		}
	})
	s.Cleanup(stop)
	return stop
}

func (s *small) client() kubernetes.Interface {
	c, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *small) dynamic() dynamic.Interface {
	c, err := dynamic.NewForConfig(s.config)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *small) metadata() metadata.Interface {
	c, err := metadata.NewForConfig(s.config)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// runner carries out withdrawals as the gate's does.
func (s *small) runner() *drain.Runner {
	clients := &cluster.Clients{Kubernetes: s.client()}
	return &drain.Runner{
		Client: clients.Kubernetes, Hooks: s.balancer, Clock: clock.RealClock{},
		Load: func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
			return cluster.Load(ctx, clients, s.balancer.Descriptions(), cluster.Scope{Nodes: nodes})
		},
	}
}

// node reads a node.
func (s *small) node(name string) *corev1.Node {
	s.Helper()
	n, err := s.Client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return n
}

// patchNode changes a node as somebody else would.
func (s *small) patchNode(name, patch string) {
	s.Helper()
	_, err := s.Client.CoreV1().Nodes().Patch(s.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		s.Fatal(err)
	}
}

// until waits until a node is as it should be.
func (s *small) until(what, name string, is func(*corev1.Node, *claim.Claim) bool) {
	s.Helper()
	s.Wait(what+" on "+name, func(ctx context.Context) (bool, string, error) {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		c, err := claim.Of(n)
		if err != nil {
			return false, "", err
		}
		return is(n, c), fmt.Sprintf("cordoned %v, label %q, %v, events %v", n.Spec.Unschedulable, n.Labels[lbhooks.ExcludeLabel], n.Annotations, s.events.all()), nil
	})
}

// on makes a Ready pod of an app on a node.
func (s *small) on(app, name, node string, mutate ...func(*corev1.Pod)) *corev1.Pod {
	s.Helper()
	relabel := func(p *corev1.Pod) { p.Labels[controlplane.AppLabel] = app }
	return s.Pod(name, node, append([]func(*corev1.Pod){relabel}, mutate...)...)
}

// behind makes a Service of an app that the balancer of the test fronts.
func (s *small) behind(app string) *corev1.Service {
	s.Helper()
	return s.Service(app, func(svc *corev1.Service) { svc.Annotations = map[string]string{lbhooks.AnnotationHook: "test"} })
}

// balancer is one whose removal is the exclude label.
type balancer struct {
	mu    sync.Mutex
	stuck bool // proves nothing
}

var _ drain.Hooks = (*balancer)(nil)

// Hook returns its one hook.
func (b *balancer) Hook(name string) (lbhooks.Hook, bool) { return labelHook{b}, name == "test" }

// Descriptions lists its one hook.
func (b *balancer) Descriptions() []lbhooks.Description {
	return []lbhooks.Description{labelHook{b}.Describe()}
}

// labelHook is the balancer as a hook.
type labelHook struct{ b *balancer }

func (h labelHook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: "test", Witness: "a label"}
}

func (h labelHook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	return h.b.rotation(svc, objects)
}

func (h labelHook) Withdraw(context.Context, lbhooks.Target) error { return nil }

func (h labelHook) Restore(context.Context, lbhooks.Target) error { return nil }

// Prove sees what the node bore when it was read last.
func (h labelHook) Prove(_ context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	out := t.Node.Labels[lbhooks.ExcludeLabel] == "true" && !h.b.stuck
	return lbhooks.Proof{Out: out, Evidence: fmt.Sprintf("%s is out: %v", t.Node.Name, out)}, nil
}

func (b *balancer) rotation(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	r := lbhooks.Rotation{Removal: lbhooks.RemovalNone, Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true}}
	if svc.Annotations[lbhooks.AnnotationHook] != "test" {
		return r, false
	}
	r = lbhooks.Rotation{
		Hook: "test", Removal: lbhooks.RemovalLabel, Provable: true, Follows: true, Seats: map[string]lbhooks.Seat{},
		Rest: lbhooks.Seat{In: lbhooks.Yes, Eligible: true},
	}
	for _, n := range objects.Nodes() {
		if _, ok := n.Labels[lbhooks.ExcludeLabel]; ok {
			r.Seats[n.Name] = lbhooks.Seat{In: lbhooks.No, Why: "labelled"}
		}
	}
	return r, true
}

// Match tells the rotation of a Service.
func (b *balancer) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	r, _ := b.rotation(svc, objects)
	return r
}

func (b *balancer) jam(stuck bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck = stuck
}

// events collects what a recorder is told.
type events struct {
	mu    sync.Mutex
	notes []string
}

func (e *events) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := ""
	if o, ok := regarding.(metav1.Object); ok {
		name = o.GetName()
	}
	e.notes = append(e.notes, name+" "+reason+": "+fmt.Sprintf(note, args...))
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.notes...)
}

// writes counts the requests of the controllers that change something.
type writes struct {
	mu  sync.Mutex
	log []string
}

func (w *writes) through(next http.RoundTripper) http.RoundTripper { return counting{w, next} }

func (w *writes) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.log...)
}

type counting struct {
	w    *writes
	next http.RoundTripper
}

func (c counting) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		c.w.mu.Lock()
		c.w.log = append(c.w.log, req.Method+" "+req.URL.Path)
		c.w.mu.Unlock()
	}
	return c.next.RoundTrip(req)
}

var wall = clock.RealClock{}

// pause lets time pass in which nothing is to happen.
func pause(d time.Duration) { time.Sleep(d) }

type storeView = cluster.StoreView

// onlyOf is a client of metadata that sees one namespace where all are asked for.
type onlyOf struct {
	metadata.Interface
	namespace string
}

// Resource returns the objects of the namespace.
func (o onlyOf) Resource(r schema.GroupVersionResource) metadata.Getter {
	return getter{o.Interface.Resource(r).Namespace(o.namespace)}
}

type getter struct{ metadata.ResourceInterface }

// Namespace returns itself.
func (g getter) Namespace(string) metadata.ResourceInterface { return g.ResourceInterface }
