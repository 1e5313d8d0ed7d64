package experiments

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/safedrain/safedrain/test/dataplane"
)

// life is when a pod was asked to go and when it was gone.
type life struct {
	app, node string
	uid       types.UID
	deleted   time.Time // seen with a deletion timestamp; zero when never
	gone      time.Time
}

// watcher notes what becomes of the pods of a namespace.
type watcher struct {
	cancel context.CancelFunc
	stop   func()

	mu   sync.Mutex
	pods map[types.UID]*life
}

// watchPods starts a watcher and returns when it knows the pods that are there.
func watchPods(ctx context.Context, lab *dataplane.Lab, namespace string) (*watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(lab.Client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	w := &watcher{cancel: cancel, stop: factory.Shutdown, pods: map[types.UID]*life{}}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.seen(obj, false) },
		UpdateFunc: func(_, obj any) { w.seen(obj, false) },
		DeleteFunc: func(obj any) { w.seen(obj, true) },
	})
	if err != nil {
		cancel()
		return nil, err
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		w.close()
		return nil, fmt.Errorf("watch the pods of %s: %w", namespace, context.Cause(ctx))
	}
	return w, nil
}

func (w *watcher) close() {
	w.cancel()
	w.stop()
}

func (w *watcher) seen(obj any, gone bool) {
	now := time.Now()
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.pods[pod.UID]
	if l == nil {
		l = &life{app: pod.Labels[dataplane.AppLabel], uid: pod.UID}
		w.pods[pod.UID] = l
	}
	l.node = pod.Spec.NodeName
	if l.deleted.IsZero() && (gone || pod.DeletionTimestamp != nil) {
		l.deleted = now
	}
	if gone {
		l.gone = now
	}
}

// on returns the lives of an app's pods on a node that were there at some time after a moment.
func (w *watcher) on(app, node string, after time.Time) []life {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []life
	for _, l := range w.pods {
		if l.app == app && l.node == node && (l.gone.IsZero() || l.gone.After(after)) {
			out = append(out, *l)
		}
	}
	return out
}
