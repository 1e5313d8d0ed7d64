package manners

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// AnnotationPreDrain on a Machine of Cluster API keeps it, once it is being deleted, from being drained until the annotation
// is gone. There is no timeout, so it is set only where a balancer sends to endpoints on the node.
const AnnotationPreDrain = "pre-drain.delete.hook.machine.cluster.x-k8s.io/safedrain"

// Annotations by which Cluster API names the Machine of a Node, on the Node.
const (
	annotationMachine   = "cluster.x-k8s.io/machine"
	annotationNamespace = "cluster.x-k8s.io/cluster-namespace"
)

// groupCAPI and kindMachine are Cluster API's.
const (
	groupCAPI    = "cluster.x-k8s.io"
	kindMachines = "machines"
	// rediscovery is how often a cluster without Machines is asked for them again.
	rediscovery = 2 * time.Minute
)

// Machines holds back the drain of Cluster API's Machines until their nodes have left rotation. It knows the Machines of
// the cluster that it runs in: those whose Node names them. Its fields are set before Run; only one runs in a cluster.
type Machines struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Store   *cluster.Store // filled before Run
	Log     *slog.Logger
	Clock   clock.WithTicker
	Options Options
	// Wanted, if set, reports whether evictions of a Service's pods are refused at all.
	Wanted func(*cluster.StoreView, *guard.ServiceFacts) bool
	// Changed, if set, is told the node of a Machine that is being deleted.
	Changed func(node string)

	mu       sync.Mutex
	resource schema.GroupVersionResource // empty while they are not served
	known    map[guard.Key]machine
}

// machine is what is known of one Machine.
type machine struct {
	node       string // status.nodeRef.name
	providerID string
	deleting   bool
	hooked     bool
}

// Run works until ctx ends. Where no Machines are served, or this user may not list them, it looks for them from time to
// time.
func (m *Machines) Run(ctx context.Context) error {
	for told := false; ; {
		resource, err := discover(ctx, m.Client, m.Dynamic)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it is to end
		case apierrors.IsForbidden(err):
			if !told {
				m.Log.Warn("the drains of Cluster API's Machines are not held back: they may not be listed", "error", err)
			}
			told, resource = true, schema.GroupVersionResource{}
		case err != nil:
			return err
		}
		if !resource.Empty() {
			m.mu.Lock()
			m.resource, m.known = resource, map[guard.Key]machine{}
			m.mu.Unlock()
			m.follow(ctx)
			return nil
		}
		timer := m.Clock.NewTimer(rediscovery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// discover finds the version in which Machines are served; empty: none.
func discover(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface) (schema.GroupVersionResource, error) {
	body, err := client.Discovery().RESTClient().Get().AbsPath("/apis", groupCAPI).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return schema.GroupVersionResource{}, nil
	}
	var group metav1.APIGroup
	if err == nil {
		err = json.Unmarshal(body, &group)
	}
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("ask which versions of %s are served: %w", groupCAPI, err)
	}
	resource := schema.GroupVersionResource{Group: groupCAPI, Version: group.PreferredVersion.Version, Resource: kindMachines}
	_, err = objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case apierrors.IsNotFound(err):
		return schema.GroupVersionResource{}, nil
	case err != nil:
		return schema.GroupVersionResource{}, fmt.Errorf("list %s: %w", resource.GroupResource(), err)
	}
	return resource, nil
}

// follow keeps the Machines in view and looks at the nodes of those that change.
func (m *Machines) follow(ctx context.Context) {
	n := newNodes(m.Store, m.Clock, m.Log, m.Options, m.look)
	machines := m.Dynamic.Resource(m.resource)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return machines.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return machines.Watch(ctx, o)
			},
		},
		ObjectType: &unstructured.Unstructured{},
		Transform: func(o any) (slim any, err error) {
			err = safely.Call(func() (err error) { slim, err = slimMachine(o); return err })
			return slim, err
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { safely.Do("a new Machine", m.Log, func() { m.set(o, n) }) },
			UpdateFunc: func(_, o any) { safely.Do("a changed Machine", m.Log, func() { m.set(o, n) }) },
			DeleteFunc: func(o any) { safely.Do("a deleted Machine", m.Log, func() { m.remove(o, n) }) },
		},
	})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	n.run(ctx)
}

// slimMachine keeps of a Machine what is asked here.
func slimMachine(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	slim := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	slim.SetNamespace(u.GetNamespace())
	slim.SetName(u.GetName())
	slim.SetUID(u.GetUID())
	slim.SetResourceVersion(u.GetResourceVersion())
	slim.SetDeletionTimestamp(u.GetDeletionTimestamp())
	if value, ok := u.GetAnnotations()[AnnotationPreDrain]; ok {
		slim.SetAnnotations(map[string]string{AnnotationPreDrain: value})
	}
	for _, path := range [][]string{{"status", "nodeRef", "name"}, {"spec", "providerID"}} {
		if value, found, err := unstructured.NestedString(u.Object, path...); err == nil && found {
			if err := unstructured.SetNestedField(slim.Object, value, path...); err != nil {
				return nil, err
			}
		}
	}
	return slim, nil
}

func machineOf(u *unstructured.Unstructured) machine {
	node, _, _ := unstructured.NestedString(u.Object, "status", "nodeRef", "name")
	provider, _, _ := unstructured.NestedString(u.Object, "spec", "providerID")
	_, hooked := u.GetAnnotations()[AnnotationPreDrain]
	return machine{node: node, providerID: provider, deleting: u.GetDeletionTimestamp() != nil, hooked: hooked}
}

func (m *Machines) set(o any, n *nodes) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	now := machineOf(u)
	key := guard.Key{Namespace: u.GetNamespace(), Name: u.GetName()}
	m.mu.Lock()
	was := m.known[key]
	m.known[key] = now
	m.mu.Unlock()
	if was == now || now.node == "" {
		return
	}
	n.add(now.node)
	if now.deleting && m.Changed != nil {
		m.Changed(now.node)
	}
}

func (m *Machines) remove(o any, n *nodes) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	m.mu.Lock()
	delete(m.known, guard.Key{Namespace: u.GetNamespace(), Name: u.GetName()})
	m.mu.Unlock()
	if node := machineOf(u).node; node != "" {
		n.add(node)
	}
}

// behind returns the Machine of a node: one that the Node names, that names the Node, and that is the same machine by its
// provider's word. A management cluster also has the Machines of other clusters, whose nodes may bear the same names.
func (m *Machines) behind(node *corev1.Node) (guard.Key, machine, bool) {
	key := guard.Key{Namespace: node.Annotations[annotationNamespace], Name: node.Annotations[annotationMachine]}
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.known[key]
	if !ok || found.node != node.Name {
		return guard.Key{}, machine{}, false
	}
	if found.providerID != "" && node.Spec.ProviderID != "" && found.providerID != node.Spec.ProviderID {
		return guard.Key{}, machine{}, false
	}
	return key, found, true
}

// Deleting reports whether the machine of a node is being deleted.
func (m *Machines) Deleting(node *corev1.Node) bool {
	_, found, ok := m.behind(node)
	return ok && found.deleting
}

// Waits reports whether the drain of a node's machine waits for the gate.
func (m *Machines) Waits(node *corev1.Node) bool {
	_, found, ok := m.behind(node)
	return ok && found.deleting && found.hooked
}

// Release lets the drain of a node's machine begin: the node has left every rotation that it had to.
func (m *Machines) Release(ctx context.Context, node *corev1.Node) error {
	key, found, ok := m.behind(node)
	if !ok || !found.hooked {
		return nil
	}
	return m.hook(ctx, key, false)
}

// look sets or removes the hook on the Machine of one node.
func (m *Machines) look(ctx context.Context, name string) error {
	var node *corev1.Node
	var needed bool
	m.Store.Read(func(v *cluster.StoreView) {
		node, _ = nodeOf(v, name)
		needed = needs(v, name, m.Wanted)
	})
	if node == nil {
		return m.orphans(ctx, name)
	}
	key, found, ok := m.behind(node)
	want := needed && node.Annotations[guard.AnnotationGate] != "off"
	switch {
	case !ok, found.hooked == want:
		return nil
	case found.deleting && want:
		return nil // it was released, or its drain has begun without one
	}
	return m.hook(ctx, key, want)
}

// orphans releases the Machines of a node that does not exist.
func (m *Machines) orphans(ctx context.Context, node string) error {
	var keys []guard.Key
	m.mu.Lock()
	for key, found := range m.known {
		if found.node == node && found.deleting && found.hooked {
			keys = append(keys, key)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(keys, guard.Key.Compare)
	for _, key := range keys {
		if err := m.hook(ctx, key, false); err != nil {
			return err
		}
	}
	return nil
}

// hook sets or removes the hook on one Machine.
func (m *Machines) hook(ctx context.Context, key guard.Key, set bool) error {
	value := any(nil)
	if set {
		value = "safedrain"
	}
	if err := patchMachine(ctx, m.Dynamic.Resource(m.resource), key, value); err != nil {
		return err
	}
	m.Log.Info("pre-drain hook", "machine", key.String(), "set", set)
	return nil
}

func patchMachine(ctx context.Context, machines dynamic.NamespaceableResourceInterface, key guard.Key, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationPreDrain: value}}})
	if err != nil {
		return err
	}
	_, err = machines.Namespace(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch machine %s: %w", key, err)
	}
	return nil
}

// ClearMachines takes the hook off every Machine, as when the gate is uninstalled, and returns how many there were. A dry run
// only counts them.
func ClearMachines(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface, dryRun bool) (int, error) {
	resource, err := discover(ctx, client, objects)
	if err != nil || resource.Empty() {
		return 0, err
	}
	cleared := 0
	opts := metav1.ListOptions{Limit: 500}
	for {
		page, err := objects.Resource(resource).List(ctx, opts)
		if err != nil {
			return cleared, fmt.Errorf("list machines: %w", err)
		}
		for i := range page.Items {
			u := &page.Items[i]
			if !machineOf(u).hooked {
				continue
			}
			key := guard.Key{Namespace: u.GetNamespace(), Name: u.GetName()}
			if !dryRun {
				if err := patchMachine(ctx, objects.Resource(resource), key, nil); err != nil {
					return cleared, err
				}
			}
			cleared++
		}
		if page.GetContinue() == "" {
			return cleared, nil
		}
		opts.Continue = page.GetContinue()
	}
}
