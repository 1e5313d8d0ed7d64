package drain

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

// keepEvery is the time between two looks at held pods.
const keepEvery = time.Second

// keeper looks after the held pods of one node: what a slice of ours says follows the pod's readiness, and the slices of a
// pod that is gone go too.
type keeper struct {
	n    *nodeRun
	stop context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	pods map[types.UID]*keptPod
}

// keptPod is a held pod with its slices. After it is added only the keeper's own goroutine changes it, under the lock.
type keptPod struct {
	namespace, name string
	uid             types.UID
	slices          map[string]*discoveryv1.EndpointSlice // by name
}

func newKeeper(n *nodeRun) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{n: n, stop: cancel, done: make(chan struct{}), pods: map[types.UID]*keptPod{}}
	go k.run(ctx)
	return k
}

// keep begins to look after a pod. Slices that were kept for another Service stay.
func (k *keeper) keep(pod *corev1.Pod, slices []*discoveryv1.EndpointSlice) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &keptPod{namespace: pod.Namespace, name: pod.Name, uid: pod.UID, slices: map[string]*discoveryv1.EndpointSlice{}}
	if had := k.pods[pod.UID]; had != nil {
		for name, s := range had.slices {
			p.slices[name] = s
		}
	}
	for _, s := range slices {
		p.slices[s.Name] = s
	}
	k.pods[pod.UID] = p
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	ticker := k.n.Clock.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			call, release := context.WithTimeout(ctx, callWithin)
			k.look(call)
			release()
		case <-ctx.Done():
			return
		}
	}
}

// end stops the looking after, once it has looked a last time. A look that is under way is cut short: the last one does
// its work, and a server that does not answer is not waited for.
func (k *keeper) end(ctx context.Context) {
	k.stop()
	<-k.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	k.look(ctx)
}

// look brings the slices of every pod in line with it. What fails is tried again at the next look.
func (k *keeper) look(ctx context.Context) {
	k.mu.Lock()
	var all []*keptPod
	for _, p := range k.pods {
		all = append(all, p)
	}
	k.mu.Unlock()
	for _, p := range all {
		if k.lookAt(ctx, p) {
			k.mu.Lock()
			if k.pods[p.uid] == p {
				delete(k.pods, p.uid)
			}
			k.mu.Unlock()
		}
	}
}

// lookAt reports whether a pod is gone and its slices too.
func (k *keeper) lookAt(ctx context.Context, p *keptPod) bool {
	pod, err := k.n.Client.CoreV1().Pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && pod.UID != p.uid:
		gone := true
		for name, s := range p.slices {
			if err := k.n.dropSlice(ctx, s.Namespace, name); err != nil {
				gone = false
			}
		}
		return gone
	case err != nil:
		return false
	}
	ready := guard.PodReady(pod)
	for name, s := range p.slices {
		if next, err := k.n.mirror(ctx, s, ready); err == nil {
			k.mu.Lock()
			p.slices[name] = next
			if now := k.pods[p.uid]; now != nil { // another one, where the pod was kept for one more Service meanwhile
				now.slices[name] = next
			}
			k.mu.Unlock()
		}
	}
	return false
}

// mirror makes a slice of ours say whether its pod serves.
func (r *Runner) mirror(ctx context.Context, s *discoveryv1.EndpointSlice, ready bool) (*discoveryv1.EndpointSlice, error) {
	if len(s.Endpoints) == 1 && s.Endpoints[0].Conditions.Serving != nil && *s.Endpoints[0].Conditions.Serving == ready {
		return s, nil
	}
	api := r.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	now, err := api.Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read EndpointSlice %s/%s: %w", s.Namespace, s.Name, err)
	}
	for i := range now.Endpoints {
		now.Endpoints[i].Conditions.Serving = &ready
	}
	now, err = api.Update(ctx, now, metav1.UpdateOptions{FieldManager: claim.FieldManager})
	if err != nil {
		return nil, fmt.Errorf("update EndpointSlice %s/%s: %w", s.Namespace, s.Name, err)
	}
	return now, nil
}
