package drain

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// world is a cluster with one balancer that a test scripts.
type world struct {
	api  *apiServer
	hook *fakeHook
	soft chan struct{}

	mu      sync.Mutex
	events  []Event
	onEvent func(Event)
}

func newWorld(nodes ...string) *world {
	w := &world{api: newAPIServer(), soft: make(chan struct{})}
	w.hook = &fakeHook{w: w, removal: lbhooks.RemovalLabel, polls: 1}
	for _, n := range nodes {
		w.api.addNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n, UID: types.UID("node-" + n), Labels: map[string]string{"kubernetes.io/hostname": n}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	return w
}

// service adds a LoadBalancer Service of policy Local in namespace web, with a ready pod on each node.
func (w *world) service(name string, on ...string) {
	w.api.services = append(w.api.services, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster), HealthCheckNodePort: 30500,
			Selector: map[string]string{"app": name}, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
		},
	})
	for i, n := range on {
		w.pod(fmt.Sprintf("%s-%d", name, i), n, name)
	}
}

// pod adds a ready pod of a ReplicaSet.
func (w *world) pod(name, node, app string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "web", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app, UID: "rs", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To(int64(30)), Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	w.api.addPod(p)
	return p
}

// replace makes every pod that goes come back under a new name on the next of these nodes, Ready after some time.
func (w *world) replace(after time.Duration, on ...string) {
	i := 0
	w.api.removed = func(p *corev1.Pod) *corev1.Pod {
		w.mu.Lock()
		i++
		n := i
		w.mu.Unlock()
		time.AfterFunc(after, func() {
			w.pod(fmt.Sprintf("%s-new%d", p.Labels["app"], n), on[n%len(on)], p.Labels["app"])
		})
		return nil
	}
}

func (w *world) runner(t *testing.T, run string) *Runner {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://api.invalid", Transport: w.api, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	hooks := fakeHooks{w.hook}
	return &Runner{
		Client: client, Hooks: hooks, Clock: clock.RealClock{}, RunID: run, Holder: run + "@host", Soft: w.soft,
		Emit: w.emit,
		Load: func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
			return cluster.Load(ctx, &cluster.Clients{Kubernetes: client}, hooks.Descriptions(), cluster.Scope{Nodes: nodes})
		},
	}
}

func (w *world) emit(e Event) {
	w.mu.Lock()
	w.events = append(w.events, e)
	on := w.onEvent
	w.mu.Unlock()
	if on != nil {
		on(e)
	}
}

func eventsOf[E Event](w *world) []E {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []E
	for _, e := range w.events {
		if e, ok := e.(E); ok {
			out = append(out, e)
		}
	}
	return out
}

func options(nodes ...string) Options {
	return Options{Nodes: nodes, GracePeriod: -1, HookTimeout: 30 * time.Second, DryRun: DryRunNone}
}

// fakeHook is a balancer: a node leaves it some polls after the label is set, or after Withdraw was called.
type fakeHook struct {
	w           *world
	removal     guard.Removal
	polls       int // observations until it is out; negative: never
	follows     bool
	serving     bool // it goes by what serves, ready or not
	blind       bool // cannot prove
	settle      time.Duration
	proofSettle *time.Duration // asked for by the proof
	fail        error          // of Withdraw
	returns     int            // how often the node is back some time after it was proven out
	sees        bool           // the objects say at once that an excluded node is out

	mu       sync.Mutex
	seen     map[string]int
	out      map[string]bool // by Withdraw
	provenAt map[string]time.Time
	restored []string
}

func (h *fakeHook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: "fake", Settle: h.settle, Witness: "polls"}
}

func (h *fakeHook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return lbhooks.Rotation{}, false
	}
	r := lbhooks.Rotation{
		Hook: "fake", Removal: h.removal, Provable: !h.blind, Follows: h.follows, FollowsServing: h.serving, Seats: map[string]lbhooks.Seat{},
		Rest: lbhooks.Seat{In: lbhooks.Yes, Eligible: true},
	}
	for _, n := range objects.Nodes() {
		if _, ok := n.Labels[lbhooks.ExcludeLabel]; ok {
			seat := lbhooks.Seat{In: lbhooks.Yes, Why: "excluded"}
			if h.sees {
				seat.In = lbhooks.No
			}
			r.Seats[n.Name] = seat
		}
	}
	return r, true
}

func (h *fakeHook) Withdraw(_ context.Context, t lbhooks.Target) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail != nil {
		return h.fail
	}
	if h.out == nil {
		h.out = map[string]bool{}
	}
	h.out[t.Node.Name] = true
	return nil
}

func (h *fakeHook) Prove(_ context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	node := h.w.api.node(t.Node.Name)
	asked := node == nil || node.Labels[lbhooks.ExcludeLabel] == "true" // a balancer does not send to a node that is gone
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.removal == lbhooks.RemovalHook {
		asked = h.out[t.Node.Name]
	}
	if h.seen == nil {
		h.seen, h.provenAt = map[string]int{}, map[string]time.Time{}
	}
	if !asked || h.polls < 0 {
		return lbhooks.Proof{Evidence: "still names " + t.Node.Name}, nil
	}
	key := t.Node.Name + "/" + t.Service.Name
	if h.seen[key]++; h.seen[key] < h.polls {
		return lbhooks.Proof{Evidence: "still names " + t.Node.Name}, nil
	}
	if h.provenAt[key].IsZero() {
		h.provenAt[key] = time.Now()
	}
	if h.returns > 0 && time.Since(h.provenAt[key]) >= h.settle {
		h.returns--
		h.seen[key], h.provenAt[key] = 0, time.Time{}
		return lbhooks.Proof{Evidence: "names " + t.Node.Name + " again"}, nil
	}
	return lbhooks.Proof{Out: true, Evidence: "gone", Settle: h.proofSettle}, nil
}

func (h *fakeHook) Restore(_ context.Context, t lbhooks.Target) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.out, t.Node.Name)
	h.restored = append(h.restored, t.Node.Name+"/"+t.Service.Name)
	return nil
}

type fakeHooks struct{ h *fakeHook }

func (f fakeHooks) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	if r, ok := f.h.Match(svc, objects); ok {
		return r
	}
	return lbhooks.Rotation{Removal: lbhooks.RemovalNone, Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true}}
}

func (f fakeHooks) Descriptions() []lbhooks.Description { return []lbhooks.Description{f.h.Describe()} }

func (f fakeHooks) Hook(name string) (lbhooks.Hook, bool) { return f.h, name == "fake" }

// names lists what some calls were about, in order.
func names(calls []call) []string {
	var out []string
	for _, c := range calls {
		out = append(out, c.what)
	}
	return out
}

func sortedText(s []string) []string { return slices.Sorted(slices.Values(s)) }
