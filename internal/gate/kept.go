package gate

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"github.com/safedrain/safedrain/internal/gate/admission"
)

// Reasons of events about scale-downs.
const (
	reasonClamped = "ReplicasClamped"
	reasonWarned  = "ReplicasBelowFloor"
	actionScale   = "Scale"
)

const (
	keptWaiting = 100              // scale-downs that wait to be told of; more are left out
	keptAgain   = time.Hour        // after which the same is told again
	keptTimeout = 10 * time.Second // of a look for autoscalers
)

// kept tells of scale-downs that were stopped at the floor: an event on the workload and on its autoscalers, once, until
// something else is asked for. An autoscaler asks every few seconds, for ever.
type kept struct {
	client kubernetes.Interface
	mapper meta.RESTMapper
	events events.EventRecorder
	log    *slog.Logger
	queue  chan admission.Kept

	mu   sync.Mutex
	told map[admission.Kept]time.Time
}

func newKept(client kubernetes.Interface, mapper meta.RESTMapper, recorder events.EventRecorder, log *slog.Logger) *kept {
	return &kept{client: client, mapper: mapper, events: recorder, log: log, queue: make(chan admission.Kept, keptWaiting), told: map[admission.Kept]time.Time{}}
}

// tell notes a scale-down; it never blocks.
func (k *kept) tell(what admission.Kept) {
	if !k.news(what) {
		return
	}
	select {
	case k.queue <- what:
	default:
	}
}

// news reports whether a scale-down is not told of yet.
func (k *kept) news(what admission.Kept) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for old, at := range k.told {
		if now.Sub(at) >= keptAgain || old.UID == what.UID && old != what {
			delete(k.told, old)
		}
	}
	if _, known := k.told[what]; known {
		return false
	}
	k.told[what] = now
	return true
}

// Start sends events until ctx ends, in the replica that answered.
func (k *kept) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case what := <-k.queue:
			k.send(ctx, what)
		}
	}
}

func (k *kept) send(ctx context.Context, what admission.Kept) {
	ctx, cancel := context.WithTimeout(ctx, keptTimeout)
	defer cancel()
	kind, err := k.mapper.KindFor(what.Resource)
	if err != nil {
		k.log.Warn("no event for a scale-down: its kind is not known", "resource", what.Resource.String(), "error", err)
		return
	}
	workload := &corev1.ObjectReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: what.Workload.Namespace, Name: what.Workload.Name, UID: what.UID,
	}
	about := []*corev1.ObjectReference{workload}
	autoscalers, err := k.client.AutoscalingV2().HorizontalPodAutoscalers(what.Workload.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		k.log.Warn("the autoscalers of a workload were not found", "workload", what.Workload.String(), "error", err)
		autoscalers = &autoscalingv2.HorizontalPodAutoscalerList{}
	}
	for i := range autoscalers.Items {
		a := &autoscalers.Items[i]
		if ref := a.Spec.ScaleTargetRef; ref.Kind == kind.Kind && ref.Name == what.Workload.Name {
			about = append(about, &corev1.ObjectReference{
				APIVersion: autoscalingv2.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler", Namespace: a.Namespace, Name: a.Name, UID: a.UID,
			})
		}
	}
	text := "kept %s %s at %d, asked for %d: %s; an autoscaler goes on reporting %d. Raise its minReplicas to %d to agree"
	reason := reasonClamped
	if what.Warned {
		reason, text = reasonWarned, "would keep %s %s at %d, asked for %d: %s; an autoscaler goes on asking for %d. Raise its minReplicas to %d to agree"
	}
	for _, ref := range about {
		k.events.Eventf(ref, nil, corev1.EventTypeNormal, reason, actionScale, text,
			strings.ToLower(kind.Kind), what.Workload, what.Granted, what.Asked, what.Why, what.Asked, what.Granted)
	}
}
