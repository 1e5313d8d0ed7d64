package cluster_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// twin is a Store beside the objects that it was fed.
type twin struct {
	store   *cluster.Store
	set     *counting
	objects map[string]runtime.Object // by kind, namespace and name
}

// counting counts how often a rotation is derived.
type counting struct {
	*hookset.Set
	derived int
}

func (c *counting) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	c.derived++
	return c.Set.Match(svc, objects)
}

func newTwin() *twin {
	set := &counting{Set: hookset.New(hookset.Deps{})}
	return &twin{store: cluster.NewStore(set), set: set, objects: map[string]runtime.Object{}}
}

func nameOf(o runtime.Object) string {
	m := o.(metav1.Object)
	return fmt.Sprintf("%s %s/%s", o.GetObjectKind().GroupVersionKind().GroupKind(), m.GetNamespace(), m.GetName())
}

// put sets an object in both; the Store gets a copy of its own.
func (w *twin) put(o runtime.Object) {
	o = o.DeepCopyObject() // several twins may be fed the same
	w.objects[nameOf(o)] = o
	switch o := o.DeepCopyObject().(type) {
	case *corev1.Node:
		w.store.SetNode(o)
	case *corev1.Service:
		w.store.SetService(o)
	case *discoveryv1.EndpointSlice:
		w.store.SetSlice(o)
	case *corev1.Pod:
		if w.agent(o) {
			w.store.SetAgent(o)
		}
	case *appsv1.DaemonSet:
		w.store.SetDaemonSet(o)
	case *unstructured.Unstructured:
		w.store.SetCustom(o.GroupVersionKind().GroupKind(), o)
	}
}

// agent reports whether a hook selects the pod.
func (w *twin) agent(p *corev1.Pod) bool {
	for _, d := range w.set.Descriptions() {
		for _, n := range d.Needs {
			if sel, err := labels.Parse(n.Labels); err == nil && n.Labels != "" && sel.Matches(labels.Set(p.Labels)) {
				return true
			}
		}
	}
	return false
}

func (w *twin) remove(name string) {
	o := w.objects[name]
	delete(w.objects, name)
	m := o.(metav1.Object)
	key := guard.Key{Namespace: m.GetNamespace(), Name: m.GetName()}
	switch o := o.(type) {
	case *corev1.Node:
		w.store.DeleteNode(key.Name)
	case *corev1.Service:
		w.store.DeleteService(key)
	case *discoveryv1.EndpointSlice:
		w.store.DeleteSlice(key)
	case *corev1.Pod:
		w.store.DeleteAgent(key)
	case *appsv1.DaemonSet:
		w.store.DeleteDaemonSet(key)
	case *unstructured.Unstructured:
		w.store.DeleteCustom(o.GroupVersionKind().GroupKind(), key)
	}
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// check compares the Store with a Snapshot of the same objects.
func (w *twin) check(t tester) {
	t.Helper()
	snap, err := cluster.FromObjects(slices.Collect(maps.Values(w.objects))...)
	if err != nil {
		t.Fatal(err)
	}
	want := snap.Index(hookset.New(hookset.Deps{}), nil)
	w.store.Read(func(v *cluster.StoreView) {
		t.Helper()
		if diff := cmp.Diff(nodes(want), nodes(v)); diff != "" {
			t.Fatalf("nodes (-snapshot +store):\n%s", diff)
		}
		services := slices.Collect(want.Services())
		if diff := cmp.Diff(services, slices.Collect(v.Services()), sameAddr); diff != "" {
			t.Fatalf("services (-snapshot +store):\n%s", diff)
		}
		for _, n := range append(nodes(want), guard.NodeFacts{}) {
			if diff := cmp.Diff(keysOf(want.ServicesOn(n.Name)), keysOf(v.ServicesOn(n.Name))); diff != "" {
				t.Fatalf("services on %q (-snapshot +store):\n%s", n.Name, diff)
			}
		}
		for _, svc := range services {
			w.checkService(t, want, v, svc)
		}
		w.checkReached(t, v, services)
		w.checkPods(t, v, services)
	})
}

// checkReached compares what is said of the Services with externalTrafficPolicy Local alone.
func (w *twin) checkReached(t tester, v *cluster.StoreView, services []*guard.ServiceFacts) {
	for _, svc := range services {
		got, ok := v.ReachedService(svc.Key)
		if ok != svc.External {
			t.Fatalf("%s: external %v, reached %v", svc.Key, svc.External, ok)
		}
		if diff := cmp.Diff(svc, got, sameAddr); ok && diff != "" {
			t.Fatalf("reached (-snapshot +store):\n%s", diff)
		}
	}
	for n := range v.Nodes() {
		var on []string
		for _, key := range v.ReachedOn(n.Name) {
			on = append(on, key.String())
		}
		if got := keysOf(v.ReachedServicesOn(n.Name)); !slices.Equal(got, on) {
			t.Fatalf("reached on %s: keys %v, facts %v", n.Name, on, got)
		}
	}
}

// checkPods: the pods behind Services of policy Local are those that slices name now, and their hints are about them.
func (w *twin) checkPods(t tester, v *cluster.StoreView, services []*guard.ServiceFacts) {
	want := map[guard.Key][]string{}
	for _, o := range w.objects {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		if _, headless := s.Labels["service.kubernetes.io/headless"]; headless {
			continue
		}
		of := guard.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		if !slices.ContainsFunc(services, func(svc *guard.ServiceFacts) bool { return svc.Key == of && svc.Local() }) {
			continue
		}
		for _, e := range s.Endpoints {
			if ref := e.TargetRef; ref != nil && ref.UID != "" {
				key := guard.Key{Namespace: ref.Namespace, Name: ref.Name}
				want[key] = append(want[key], of.String())
			}
		}
	}
	for i := range 6 {
		key := guard.Key{Namespace: "e", Name: fmt.Sprintf("p%d", i)}
		slices.Sort(want[key])
		of := slices.Compact(want[key])
		if got := keysOf(v.ServicesOf(types.UID(key.Name), key, nil)); !slices.Equal(of, got) {
			t.Fatalf("behind the pod %s: slices say %v, store %v", key, of, got)
		}
		_, node, ok := v.Endpoint(key)
		uid, hint, hinted := v.Hint(key)
		if len(of) == 0 && hinted || ok && !hinted || hinted && (string(uid) != key.Name || hint == "") {
			t.Fatalf("%s behind %v on %s (%v): hint %s on %s (%v)", key, of, node, ok, uid, hint, hinted)
		}
	}
}

// podless is an Index without pods, as a Store is.
type podless struct{ guard.Index }

func (podless) Pods(string) iter.Seq[*corev1.Pod] { return func(func(*corev1.Pod) bool) {} }
func (podless) Pod(types.UID) (*corev1.Pod, bool) { return nil, false }
func (podless) Workloads(string) iter.Seq[*guard.Workload] {
	return func(func(*guard.Workload) bool) {}
}

func nodes(ix guard.Index) []guard.NodeFacts {
	var out []guard.NodeFacts
	for n := range ix.Nodes() {
		out = append(out, *n)
	}
	return out
}

func keysOf(services func(func(*guard.ServiceFacts) bool)) []string {
	out := []string{}
	for s := range services {
		out = append(out, s.Key.String())
	}
	return out
}

// checkService compares what the rules make of one Service, and finds each of its pods again.
func (w *twin) checkService(t tester, want guard.Index, v *cluster.StoreView, svc *guard.ServiceFacts) {
	got, ok := v.Service(svc.Key)
	if !ok {
		t.Fatalf("%s is not there", svc.Key)
	}
	if !svc.Local() {
		return
	}
	a, b := guard.Cover(svc), guard.Cover(got)
	loss := &guard.Loss{Nodes: map[string]bool{}, Evicted: map[types.UID]bool{}, Flags: &guard.Flags{}}
	for _, name := range a.Nodes() {
		stateA, countA := a.State(name)
		if stateB, countB := b.State(name); stateA != stateB || countA != countB {
			t.Fatalf("%s on %s: snapshot %s %d, store %s %d", svc.Key, name, stateA, countA, stateB, countB)
		}
		loss.Nodes = map[string]bool{name: true}
		if diff := cmp.Diff(guard.JudgeService(svc, podless{want}, loss), guard.JudgeService(got, v, loss)); diff != "" {
			t.Fatalf("%s without %s (-snapshot +store):\n%s", svc.Key, name, diff)
		}
	}
	for i := range svc.Ports {
		for _, e := range svc.Ports[i].Endpoints {
			if e.Pod != "" && !slices.Contains(keysOf(v.ServicesOf(e.Pod, e.PodKey, nil)), svc.Key.String()) {
				t.Fatalf("%s is not among the Services of its pod %s", svc.Key, e.Pod)
			}
		}
	}
}

// TestStoreCases feeds the Store the dump of every case, in the order of the dump and in the opposite one.
func TestStoreCases(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "cases", "*", "cluster.yaml"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d cases: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			objects := objectsOf(t, file)
			var w *twin
			for _, order := range []func([]runtime.Object){func([]runtime.Object) {}, slices.Reverse[[]runtime.Object]} {
				order(objects)
				w = newTwin()
				for _, o := range objects {
					w.put(o)
				}
				w.check(t)
			}
			derived := w.set.derived
			w.touch()
			if w.check(t); w.set.derived != derived {
				t.Errorf("%d rotations were derived anew, though nothing that hooks read has changed", w.set.derived-derived)
			}
		})
	}
}

// touch changes of every node what no hook reads.
func (w *twin) touch() {
	now := metav1.Now().Rfc3339Copy()
	for _, o := range slices.Collect(maps.Values(w.objects)) {
		n, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		n = n.DeepCopy()
		n.ResourceVersion = "9999999"
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, "example.com/measured", "now")
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, claim.AnnotationRefused, now.UTC().Format(time.RFC3339))
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("7")}
		for i := range n.Status.Conditions {
			c := &n.Status.Conditions[i]
			c.LastHeartbeatTime, c.LastTransitionTime, c.Reason = now, now, "Touched"
		}
		w.put(n)
	}
}

// TestStoreDerives: a rotation is derived anew for the Service that is asked for, and only when something changed that hooks
// read.
func TestStoreDerives(t *testing.T) {
	node := func(name string) *corev1.Node {
		n := largeNode(0, nil)
		n.Name, n.Spec.ProviderID = name, "aws:///eu-1a/i-1"
		return n
	}
	for name, test := range map[string]struct {
		change  func(*corev1.Node)
		derived int // of the Service that is asked for
	}{
		"nothing":                  {func(*corev1.Node) {}, 0},
		"an annotation of others":  {func(n *corev1.Node) { n.Annotations = map[string]string{"example.com/a": "b"} }, 0},
		"a refusal":                {func(n *corev1.Node) { n.Annotations = map[string]string{claim.AnnotationRefused: "x"} }, 0},
		"a heartbeat":              {func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }, 0},
		"what can be allocated":    {func(n *corev1.Node) { n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1")} }, 0},
		"a label":                  {func(n *corev1.Node) { n.Labels["zone"] = "a" }, 1},
		"a taint":                  {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }, 1},
		"a cordon":                 {func(n *corev1.Node) { n.Spec.Unschedulable = true }, 1},
		"a condition":              {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, 1},
		"an address":               {func(n *corev1.Node) { n.Status.Addresses[0].Address = "10.9.9.9" }, 1},
		"a claim":                  {func(n *corev1.Node) { n.Annotations = map[string]string{claim.Annotation: "{}"} }, 1},
		"its deletion has begun":   {func(n *corev1.Node) { now := metav1.Now(); n.DeletionTimestamp = &now }, 1},
		"another one of that name": {func(n *corev1.Node) { n.UID = "2" }, 1},
		"one more node":            {func(n *corev1.Node) { n.Name = "c" }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := derivingTwin(node("a"), node("b"))
			n := node("b")
			test.change(n)
			if got := w.derivedBy(t, n); got != test.derived {
				t.Errorf("%d rotations derived anew, want %d", got, test.derived)
			}
		})
	}
}

// TestStoreDerivesByObjects: the same of a balancer's objects, some of which are written all the time.
func TestStoreDerivesByObjects(t *testing.T) {
	lease := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"namespace": "kube-system", "name": "plndr-svcs-lock", "resourceVersion": "1"},
			"spec": map[string]any{"holderIdentity": "a", "renewTime": "2026-11-30T14:00:00.000000Z"},
		}}
	}
	routes := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "projectcalico.org/v3", "kind": "CalicoNodeStatus", "metadata": map[string]any{"name": "a", "resourceVersion": "1"},
			"spec":   map[string]any{"node": "a", "classes": []any{"Routes"}, "updatePeriodSeconds": int64(10)},
			"status": map[string]any{"lastUpdated": "2026-11-30T14:00:00Z", "routes": map[string]any{}},
		}}
	}
	for name, test := range map[string]struct {
		object  func() *unstructured.Unstructured
		field   []string
		to      any
		derived int
	}{
		"a Lease, renewed":            {lease, []string{"spec", "renewTime"}, "2026-11-30T14:00:02.000000Z", 0},
		"a Lease of another":          {lease, []string{"spec", "holderIdentity"}, "b", 1},
		"a CalicoNodeStatus, updated": {routes, []string{"status", "lastUpdated"}, "2026-11-30T14:00:10Z", 0},
		"a CalicoNodeStatus, changed": {routes, []string{"status", "routes", "routesV4"}, []any{map[string]any{"destination": "192.0.2.1/32"}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := derivingTwin(largeNode(0, nil), test.object())
			u := test.object()
			u.SetResourceVersion("2")
			if err := unstructured.SetNestedField(u.Object, test.to, test.field...); err != nil {
				t.Fatal(err)
			}
			if got := w.derivedBy(t, u); got != test.derived {
				t.Errorf("%d rotations derived anew, want %d", got, test.derived)
			}
		})
	}
}

const derivingServices = 5

// derivingTwin has some objects, and Services that a balancer sends to.
func derivingTwin(objects ...runtime.Object) *twin {
	w := newTwin()
	for _, o := range objects {
		w.put(o)
	}
	for i := range derivingServices {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("s", i)}}
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.96.0.1"}
		w.put(svc)
	}
	return w
}

// derivedBy returns how many rotations are derived anew when one Service is asked for after a change. All were derived before.
func (w *twin) derivedBy(t *testing.T, change runtime.Object) int {
	t.Helper()
	w.store.Read(func(v *cluster.StoreView) {
		if all := slices.Collect(v.Services()); len(all) != derivingServices || w.set.derived != derivingServices {
			t.Fatalf("%d Services, %d rotations derived", len(all), w.set.derived)
		}
	})
	w.put(change)
	w.store.Read(func(v *cluster.StoreView) {
		if keys := v.Reached(); len(keys) != derivingServices || w.set.derived != derivingServices {
			t.Errorf("%d Services are reached, %d rotations derived", len(keys), w.set.derived)
		}
		v.Service(guard.Key{Namespace: "shop", Name: "s1"})
		v.Service(guard.Key{Namespace: "shop", Name: "s1"})
	})
	return w.set.derived - derivingServices
}

// objectsOf reads the objects of a dump that a Store takes.
func objectsOf(t *testing.T, file string) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []runtime.Object
	for doc := range strings.SplitSeq("\n"+string(text), "\n---") {
		raw, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if strings.TrimSpace(string(raw)) == "null" || u.UnmarshalJSON(raw) != nil {
			continue
		}
		if err := u.EachListItem(func(o runtime.Object) error { out = appendTyped(out, o.(*unstructured.Unstructured)); return nil }); err != nil {
			out = appendTyped(out, u)
		}
	}
	return out
}

func appendTyped(out []runtime.Object, u *unstructured.Unstructured) []runtime.Object {
	typed := map[schema.GroupKind]func() runtime.Object{
		{Kind: "Node"}:    func() runtime.Object { return &corev1.Node{} },
		{Kind: "Service"}: func() runtime.Object { return &corev1.Service{} },
		{Kind: "Pod"}:     func() runtime.Object { return &corev1.Pod{} },
		{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: func() runtime.Object { return &discoveryv1.EndpointSlice{} },
		{Group: "apps", Kind: "DaemonSet"}:                 func() runtime.Object { return &appsv1.DaemonSet{} },
	}
	gk := u.GroupVersionKind().GroupKind()
	if empty, ok := typed[gk]; ok {
		o := empty()
		raw, _ := json.Marshal(u)
		if err := json.Unmarshal(raw, o); err != nil {
			panic(err)
		}
		return append(out, o)
	}
	if gk.Group == "" || gk.Group == "apps" || gk.Group == "batch" || gk.Group == "policy" || gk.Group == "networking.k8s.io" || gk.Group == "autoscaling" {
		return out
	}
	return append(out, u)
}

// TestStoreProperties: however objects come, change and go, the Store answers like a Snapshot of those that are there.
func TestStoreProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTwin()
		changes, cancel := w.store.Subscribe()
		defer cancel()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			names := slices.Sorted(maps.Keys(w.objects))
			if len(names) > 0 && rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
				w.remove(rapid.SampledFrom(names).Draw(t, "which"))
			} else {
				w.put(randomObject(t))
			}
			if rapid.IntRange(0, 3).Draw(t, "look") == 0 {
				w.check(t)
			}
		}
		w.check(t)
		w.checkChanges(t, changes)
	})
}

// checkChanges: the subscriber was told of every node and Service that is there.
func (w *twin) checkChanges(t *rapid.T, changes *cluster.Changes) {
	if len(w.objects) == 0 {
		return
	}
	select {
	case <-changes.Ready():
	default:
		t.Fatal("nobody said that something changed")
	}
	change := changes.Take()
	for _, o := range w.objects {
		m := o.(metav1.Object)
		switch o.(type) {
		case *corev1.Node:
			if !slices.Contains(change.Nodes, m.GetName()) {
				t.Fatalf("not told of node %s", m.GetName())
			}
		case *corev1.Service:
			if !slices.Contains(change.Services, guard.Key{Namespace: m.GetNamespace(), Name: m.GetName()}) {
				t.Fatalf("not told of Service %s", m.GetName())
			}
		}
	}
	if again := changes.Take(); len(again.Nodes)+len(again.Services) > 0 || again.Objects {
		t.Fatalf("told twice: %+v", again)
	}
}

var storeNodes = []string{"n1", "n2", "n3"}

func randomObject(t *rapid.T) runtime.Object {
	kinds := []func(*rapid.T) runtime.Object{
		randomNode, randomService, randomService, randomSlice, randomSlice, randomSlice, randomAgent, randomCustom, randomCustom,
	}
	return rapid.SampledFrom(kinds).Draw(t, "kind")(t)
}

func randomNode(t *rapid.T) runtime.Object {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	n.Name = rapid.SampledFrom(storeNodes).Draw(t, "node")
	n.Labels = map[string]string{"role": rapid.SampledFrom([]string{"edge", "inner"}).Draw(t, "role")}
	n.ResourceVersion = fmt.Sprint(rapid.IntRange(1, 1000).Draw(t, "version"))
	n.Annotations = rapid.SampledFrom([]map[string]string{
		nil,
		{"example.com/x": "1"},
		{"safedrain.dev/refused": "2026-11-30T14:02:07Z"},
		{"safedrain.dev/drain": `{"v":1,"run":"r","holder":"h","nodes":["n1"],"phase":"granted","set":["label"],"free":["e/s1"],"services":{"e/s0":{"hook":"x","released":true}}}`},
		{"safedrain.dev/drain": `{"v":1,"run":"r","holder":"h","nodes":["n1"],"phase":"granted","renewed":"2026-11-30T14:02:07Z"}`},
	}).Draw(t, "annotations")
	n.Spec.Unschedulable = rapid.Bool().Draw(t, "cordoned")
	if rapid.IntRange(0, 3).Draw(t, "excluded") == 0 {
		n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] = "true"
	}
	if rapid.IntRange(0, 3).Draw(t, "tainted") == 0 {
		n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	}
	n.Spec.ProviderID = rapid.SampledFrom([]string{"", "aws:///a/i-1"}).Draw(t, "provider")
	ready := rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse}).Draw(t, "ready")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	return n
}

func randomService(t *rapid.T) runtime.Object {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	s.Namespace, s.Name = "e", fmt.Sprintf("s%d", rapid.IntRange(0, 3).Draw(t, "service"))
	s.Spec.Type = rapid.SampledFrom([]corev1.ServiceType{
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName,
	}).Draw(t, "type")
	s.Spec.ExternalTrafficPolicy = rapid.SampledFrom([]corev1.ServiceExternalTrafficPolicy{"Local", "Local", "Cluster"}).Draw(t, "policy")
	s.Spec.ClusterIP = rapid.SampledFrom([]string{"10.96.0.1", "10.96.0.1", "10.96.0.1", "None"}).Draw(t, "ip")
	s.Spec.Selector = map[string]string{"app": s.Name}
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}}
	if rapid.IntRange(0, 5).Draw(t, "other proxy") == 0 {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
	}
	s.Annotations = rapid.SampledFrom([]map[string]string{
		nil, nil, {"safedrain.dev/nodes": "role=edge"}, {"safedrain.dev/gate": "warn"}, {"safedrain.dev/hook": "cloud-provider"}, {"safedrain.dev/nodes": "none"},
	}).Draw(t, "annotations")
	for range rapid.IntRange(0, 2).Draw(t, "addresses") {
		ip := rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2"}).Draw(t, "address")
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return s
}

func randomSlice(t *rapid.T) runtime.Object {
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, AddressType: discoveryv1.AddressTypeIPv4}
	s.Namespace, s.Name = "e", fmt.Sprintf("slice%d", rapid.IntRange(0, 5).Draw(t, "slice"))
	s.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("s%d", rapid.IntRange(0, 3).Draw(t, "of"))}
	if rapid.IntRange(0, 8).Draw(t, "headless") == 0 {
		s.Labels["service.kubernetes.io/headless"] = ""
	}
	name, number := "http", int32(8080)
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &number}}
	for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
		i := rapid.IntRange(0, 5).Draw(t, "endpoint")
		pod := fmt.Sprintf("p%d", i)
		ready, terminating := rapid.Bool().Draw(t, "ready"), rapid.IntRange(0, 3).Draw(t, "terminating") == 0
		e := discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.244.0.%d", i)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "e", Name: pod, UID: types.UID(pod)},
		}
		if node := rapid.SampledFrom(append(storeNodes, "")).Draw(t, "on"); node != "" {
			e.NodeName = &node
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func randomAgent(t *rapid.T) runtime.Object {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	node := rapid.SampledFrom(storeNodes).Draw(t, "node")
	p.Namespace, p.Name, p.UID = "kube-system", "svclb-"+node, types.UID("agent-"+node)
	p.Labels = map[string]string{"svccontroller.k3s.cattle.io/svcname": "s0", "svccontroller.k3s.cattle.io/svcnamespace": "e"}
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodRunning
	ready := rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}).Draw(t, "ready")
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	return p
}

func randomCustom(t *rapid.T) runtime.Object {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	kind := rapid.SampledFrom([]string{"IPAddressPool", "L2Advertisement", "ServiceL2Status", "Lease", "CalicoNodeStatus"}).Draw(t, "kind")
	u.SetAPIVersion("metallb.io/v1beta1")
	u.SetKind(kind)
	u.SetNamespace("metallb-system")
	u.SetName(fmt.Sprintf("o%d", rapid.IntRange(0, 1).Draw(t, "object")))
	node := rapid.SampledFrom(storeNodes).Draw(t, "node")
	switch kind {
	case "IPAddressPool":
		u.SetResourceVersion(fmt.Sprint(rapid.IntRange(1, 9).Draw(t, "version")))
		u.Object["spec"] = map[string]any{"addresses": []any{"192.0.2.0/24"}}
	case "L2Advertisement":
		u.Object["spec"] = map[string]any{"nodeSelectors": []any{map[string]any{"matchLabels": map[string]any{"role": "edge"}}}}
	case "ServiceL2Status":
		u.SetLabels(map[string]string{"metallb.io/node": node, "metallb.io/service-name": "s0", "metallb.io/service-namespace": "e"})
		u.Object["status"] = map[string]any{"node": node, "serviceName": "s0", "serviceNamespace": "e"}
	case "CalicoNodeStatus":
		u.SetAPIVersion("crd.projectcalico.org/v1")
		u.SetNamespace("")
		u.Object["spec"] = map[string]any{"node": node, "updatePeriodSeconds": int64(10), "classes": []any{"Routes"}}
		u.Object["status"] = map[string]any{"lastUpdated": fmt.Sprintf("2026-11-30T14:02:0%dZ", rapid.IntRange(0, 9).Draw(t, "updated"))}
	case "Lease":
		u.SetAPIVersion("coordination.k8s.io/v1")
		u.Object["spec"] = map[string]any{"holderIdentity": node, "renewTime": fmt.Sprintf("2026-11-30T14:02:0%d.000000Z", rapid.IntRange(0, 9).Draw(t, "renewed"))}
	}
	return u
}
