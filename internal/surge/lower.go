package surge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Lowered is what became of a surge.
type Lowered struct {
	Back bool   // the number is what it was before
	Note string // what is otherwise, for people; "" when nothing is
}

// Lower puts the number back to what it was and removes the mark, in one patch. A number that somebody else has changed
// meanwhile is left as it is, and the note says so. victim is the pod that is to go for it; nil: the youngest one, where
// the ReplicaSet has not taken one by itself that is not Ready. A surge that no longer stands, or whose object is gone,
// is no error.
func (b *Bringer) Lower(ctx context.Context, l Lever, victim *corev1.Pod) (Lowered, error) {
	marked, err := b.spend(ctx, victim)
	if err != nil {
		return Lowered{}, err
	}
	mark, out, err := b.putBack(ctx, l)
	if err == nil && out.Back {
		marked, out.Note, err = b.shrink(ctx, l, mark, marked)
	}
	return out, errors.Join(err, b.unspend(ctx, marked))
}

// shrink has the ReplicaSet take the further pod once the number is put back. It returns the pod that was marked to go, and
// why an autoscaler keeps it, if it does.
func (b *Bringer) shrink(ctx context.Context, l Lever, mark *Mark, marked *corev1.Pod) (*corev1.Pod, string, error) {
	if l.Kind != kindDeployment {
		if kept, err := b.countBack(ctx, l, mark); err != nil || kept != "" {
			return marked, kept, err
		}
	}
	marked, err := b.shed(ctx, l, mark.To-1, marked)
	return marked, "", err
}

// putBack writes what the mark says. It returns the mark, nil when none stands.
func (b *Bringer) putBack(ctx context.Context, l Lever) (*Mark, Lowered, error) {
	for range conflictTries {
		r, err := b.read(ctx, l)
		if apierrors.IsNotFound(err) {
			return nil, Lowered{}, nil
		}
		if err != nil {
			return nil, Lowered{}, err
		}
		if r.mark == nil {
			return nil, Lowered{}, nil
		}
		c, out := change{}, Lowered{}
		if r.stands() {
			c.number, c.value, out.Back = true, r.mark.From, true
		} else {
			out.Note = fmt.Sprintf("%s of %s is %d, and not the %d of the surge: changed meanwhile%s, left as it is",
				kinds[l.Kind].field, l.Kind+" "+l.Workload.Namespace+"/"+l.Name, r.number(), r.mark.To, r.writer())
		}
		if err = b.write(ctx, r, c); err == nil {
			return r.mark, out, nil
		}
		if !apierrors.IsConflict(err) {
			return nil, Lowered{}, err
		}
	}
	return nil, Lowered{}, fmt.Errorf("%s changed %d times in a row under the patch", l, conflictTries)
}

// obeyWithin bounds the wait for KEDA to hand its number on to the autoscaler.
const obeyWithin = 15 * time.Second

// countBack takes the replica away that an autoscaler started for the sake of its raised least: it would keep it for
// minutes, and take any pod then. An autoscaler that wants as many by itself keeps them, and the text says so.
func (b *Bringer) countBack(ctx context.Context, l Lever, mark *Mark) (kept string, err error) {
	start := b.Clock.Now()
	for {
		h, err := b.autoscaler(ctx, l)
		if err != nil || h == nil {
			return "", err
		}
		if leastOf(h) < mark.To {
			if wants(h, mark.To) {
				return fmt.Sprintf("horizontalpodautoscaler %s/%s wants %d replicas of %s by itself now, and keeps them", h.Namespace, h.Name, h.Status.DesiredReplicas, l.Title()), nil
			}
			break
		}
		if b.Clock.Since(start) > obeyWithin {
			return fmt.Sprintf("horizontalpodautoscaler %s/%s still has the least of the surge: its replicas are left to it", h.Namespace, h.Name), nil
		}
		if err := b.pause(ctx); err != nil {
			return "", err
		}
	}
	d := Lever{kindDeployment, l.Workload.Name, l.Workload}
	for range conflictTries {
		r, err := b.read(ctx, d)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		if r.number() != mark.To {
			return "", nil // the autoscaler has scaled meanwhile
		}
		less := mark.To - 1
		err = b.write(ctx, r, change{number: true, value: &less, mark: r.mark})
		if err == nil || !apierrors.IsConflict(err) {
			return "", err
		}
	}
	return "", nil
}

// autoscaler reads the one that scales a Deployment; nil when it is gone.
func (b *Bringer) autoscaler(ctx context.Context, l Lever) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	list, err := b.Client.AutoscalingV2().HorizontalPodAutoscalers(l.Workload.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the autoscalers of namespace %q: %w", l.Workload.Namespace, err)
	}
	for i := range list.Items {
		if h := &list.Items[i]; scales(h, l.Workload.Name) && leverOf(h, l.Workload) == l {
			return h, nil
		}
	}
	return nil, nil
}

// wants reports whether an autoscaler asks for as many replicas by its metrics: it has looked since they were there, and
// its least did not hold it up.
func wants(h *autoscalingv2.HorizontalPodAutoscaler, replicas int64) bool {
	if int64(h.Status.DesiredReplicas) > replicas {
		return true
	}
	if int64(h.Status.CurrentReplicas) < replicas {
		return false
	}
	active, held := false, false
	for i := range h.Status.Conditions {
		c := &h.Status.Conditions[i]
		active = active || c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionTrue
		held = held || c.Type == autoscalingv2.ScalingLimited && c.Status == corev1.ConditionTrue && c.Reason == "TooFewReplicas"
	}
	return active && !held
}

// shedWithin bounds the wait for the ReplicaSet to take its pod.
const (
	shedWithin = 10 * time.Second
	poll       = 100 * time.Millisecond
)

func (b *Bringer) pause(ctx context.Context) error {
	timer := b.Clock.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// shed waits until the ReplicaSet has no more pods than it is to have. One that was made when the evicted pod went is the
// youngest: it is not Ready, and so the first to go, or it is made to be. It returns the pod that was marked to go.
func (b *Bringer) shed(ctx context.Context, l Lever, want int64, marked *corev1.Pod) (*corev1.Pod, error) {
	start := b.Clock.Now()
	for b.Clock.Since(start) < shedWithin {
		d, err := b.Client.AppsV1().Deployments(l.Workload.Namespace).Get(ctx, l.Workload.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return marked, nil
		}
		if err != nil {
			return marked, fmt.Errorf("read %s: %w", l.Title(), err)
		}
		pods, err := b.pods(ctx, l.Workload)
		if err != nil {
			return marked, err
		}
		seen := d.Status.ObservedGeneration >= d.Generation
		if seen && int64(d.Status.Replicas) <= want && int64(len(pods)) <= want {
			break
		}
		if marked == nil && int64(len(pods)) > want {
			if marked, err = b.spend(ctx, youngestReady(pods)); err != nil {
				return nil, err
			}
		}
		if err := b.pause(ctx); err != nil {
			return marked, err
		}
	}
	return marked, nil
}

// youngestReady is the youngest of some pods that are all Ready; nil where one is not, for that one goes first.
func youngestReady(pods []*corev1.Pod) *corev1.Pod {
	if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning || !guard.PodReady(p) }) {
		return nil
	}
	return slices.MaxFunc(pods, func(a, b *corev1.Pod) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}
