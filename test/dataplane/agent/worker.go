package agent

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/dataplane"
)

// worker runs one pod from its binding to its end.
type worker struct {
	agent *agent
	first *corev1.Pod // as it was first seen: its names and most of its spec never change
	dir   string      // of the pod: logs
	netns string
	addrs []netip.Addr

	changed chan struct{} // the pod changed, or went
	publish chan struct{} // the state changed, for the status
	limit   *deadline

	// What follows is guarded by mu.
	mu         sync.Mutex
	pod        *corev1.Pod
	gone       bool // it is no longer in the cluster
	stopping   bool // nothing is started any more
	failure    error
	started    time.Time
	delayed    bool // ReadyAfter has not passed yet
	containers []*container
	conditions map[corev1.PodConditionType]corev1.PodCondition // as last published
}

func newWorker(a *agent, pod *corev1.Pod) *worker {
	w := &worker{
		agent: a, first: pod, pod: pod, dir: filepath.Join(a.dir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID)),
		changed: make(chan struct{}, 1), publish: make(chan struct{}, 1), limit: newDeadline(),
		started: time.Now(), conditions: map[corev1.PodConditionType]corev1.PodCondition{},
	}
	for i := range pod.Spec.Containers {
		w.containers = append(w.containers, newContainer(w, &pod.Spec.Containers[i]))
	}
	return w
}

// update takes a newer version of the pod.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	w.mu.Unlock()
	signal(w.changed)
	signal(w.publish) // an annotation or a readiness gate may have changed
}

// remove says that the pod is no longer in the cluster.
func (w *worker) remove() {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	signal(w.changed)
}

// signal leaves a note that something happened; one note is enough.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run runs the pod to its end, keeps its status up to date and deletes it when that is what was asked for.
func (w *worker) run(ctx context.Context) {
	publishing := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(publishing)
		w.publishUntil(ctx, ended)
	}()
	if err := w.start(ctx); err != nil {
		w.agent.log.Error("pod not started", "pod", w.first.Name, "error", err)
		w.mu.Lock()
		w.failure, w.stopping = err, true
		w.mu.Unlock()
		signal(w.publish)
	}
	w.follow(ctx)
	if w.failed() {
		w.awaitDeletion(ctx) // it stays Pending and says why, or its owner would make another one at once, for ever
	}
	if err := w.removeNetwork(ctx); err != nil {
		w.agent.log.Error("namespace not removed", "pod", w.first.Name, "error", err)
	}
	close(ended)
	<-publishing
	w.awaitDeletion(ctx)
	w.mu.Lock()
	pod := w.pod
	w.mu.Unlock()
	w.agent.finish(ctx, pod)
}

// start makes the pod's namespace and starts its containers.
func (w *worker) start(ctx context.Context) error {
	if w.first.DeletionTimestamp != nil {
		w.mu.Lock()
		w.stopping = true
		w.mu.Unlock()
		return nil // it was deleted before it ran
	}
	if len(w.first.Spec.InitContainers) > 0 {
		return errInit
	}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return err
	}
	if err := w.makeNetwork(ctx); err != nil {
		return err
	}
	if after, err := strconv.Atoi(w.first.Annotations[dataplane.ReadyAfter]); err == nil && after > 0 {
		w.mu.Lock()
		w.delayed = true
		w.mu.Unlock()
		time.AfterFunc(time.Duration(after)*time.Second, func() {
			w.mu.Lock()
			w.delayed = false
			w.mu.Unlock()
			signal(w.publish)
		})
	}
	for _, c := range w.containers {
		c.begin(ctx)
	}
	return nil
}

func (w *worker) makeNetwork(ctx context.Context) (err error) {
	netns, addrs := w.agent.netns, w.agent.hostIPs
	if !w.first.Spec.HostNetwork {
		netns, addrs, err = w.agent.network.add(ctx, w.first)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.netns, w.addrs = netns, addrs
	return err
}

func (w *worker) removeNetwork(ctx context.Context) error {
	if w.first.Spec.HostNetwork || w.netns == "" {
		return nil
	}
	return w.agent.network.remove(ctx, w.netns, w.addrs)
}

// follow waits until every container has ended for good, and begins to end them when the pod is deleted.
func (w *worker) follow(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		for _, c := range w.containers {
			c.wait()
		}
		close(ended)
	}()
	var terminating bool
	for {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-w.changed:
		}
		grace, deleted := w.grace()
		if !deleted {
			continue
		}
		w.limit.atMost(time.Now().Add(grace))
		if !terminating {
			terminating = true
			for _, c := range w.containers {
				go c.end(ctx)
			}
		}
	}
}

// grace returns how long the pod may go on once it is deleted: a second where it is to vanish at once, as with a kubelet.
func (w *worker) grace() (grace time.Duration, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		w.stopping = true
		return time.Second, true
	}
	if w.pod.DeletionTimestamp == nil {
		return 0, false
	}
	w.stopping = true
	var seconds int64
	if s := w.pod.DeletionGracePeriodSeconds; s != nil {
		seconds = *s
	}
	return time.Duration(max(seconds, 1)) * time.Second, true
}

// failed reports whether the pod could not be started.
func (w *worker) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure != nil
}

// awaitDeletion waits, for a pod that ended by itself, until somebody deletes it.
func (w *worker) awaitDeletion(ctx context.Context) {
	for {
		if _, deleted := w.grace(); deleted {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		}
	}
}
