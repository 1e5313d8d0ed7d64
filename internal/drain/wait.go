package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// podPage is the number of pods that one LIST returns.
const podPage = 500

// errRelist says that a watch cannot go on from where it was.
var errRelist = errors.New("the watch has to begin anew")

// watchPods reports what becomes of the pods of the node until ctx ends: one watch, resumed where it broke off; where
// that is not possible, a list and a watch from there. Failures are retried: the queue has the timeouts. The first list
// is left out when no pod is terminating already: a watch without a resourceVersion begins with the pods that are there,
// and of one that went before that the eviction says so.
func (n *nodeRun) watchPods(ctx context.Context, list bool, seen chan<- podSeen) {
	if !list {
		if err := n.followPods(ctx, "", seen); !errors.Is(err, errRelist) && ctx.Err() == nil {
			n.waitOut(ctx, 0, err)
		}
	}
	for tries := 0; ctx.Err() == nil; tries++ {
		list, rv, err := n.listPods(ctx)
		if err == nil {
			tries = 0
			all := map[types.UID]time.Time{}
			for i := range list {
				all[list[i].UID] = deletionOf(&list[i])
			}
			if !send(ctx, seen, podSeen{all: all}) {
				return
			}
			err = n.followPods(ctx, rv, seen)
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRelist) {
			continue
		}
		n.waitOut(ctx, tries, err)
	}
}

// waitOut pauses between two tries, and says once what is wrong.
func (n *nodeRun) waitOut(ctx context.Context, tries int, err error) {
	wait := doubled(passingWait, tries+1, passingMax)
	if apierrors.IsForbidden(err) {
		wait = heldWait // no right to watch: lists have to do
	}
	if tries == 3 {
		n.emit(Warned{Text: fmt.Sprintf("the pods of node/%s cannot be followed: %v; trying on", n.name, err)})
	}
	timer := n.Clock.NewTimer(jitter(wait))
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

func (n *nodeRun) podOptions() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.name).String()}
}

// listPods lists the pods of the node, with the resourceVersion that a watch goes on from.
func (n *nodeRun) listPods(ctx context.Context) ([]corev1.Pod, string, error) {
	opts := n.podOptions()
	opts.Limit = podPage
	var all []corev1.Pod
	for {
		list, err := n.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
		if err != nil {
			return nil, "", fmt.Errorf("list the pods of node %q: %w", n.name, err)
		}
		all = append(all, list.Items...)
		if list.Continue == "" {
			return all, list.ResourceVersion, nil
		}
		opts.Continue = list.Continue
	}
}

// followPods watches from a resourceVersion on, over as many watches as it takes.
func (n *nodeRun) followPods(ctx context.Context, rv string, seen chan<- podSeen) error {
	for tries := 0; ctx.Err() == nil; {
		opts := n.podOptions()
		opts.ResourceVersion, opts.AllowWatchBookmarks = rv, true
		w, err := n.Client.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, opts)
		switch {
		case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			return errRelist
		case apierrors.IsForbidden(err):
			return err
		case err != nil:
			if tries++; tries > 5 {
				return err
			}
			n.waitOut(ctx, tries, err)
			continue
		}
		if !send(ctx, seen, podSeen{}) {
			w.Stop()
			return ctx.Err()
		}
		last, err := pump(ctx, w, rv, seen)
		w.Stop()
		if err != nil {
			return err
		}
		if last == rv {
			if tries++; tries > 5 {
				return errRelist
			}
			n.waitOut(ctx, tries, nil)
			continue
		}
		rv, tries = last, 0
	}
	return ctx.Err()
}

// pump hands on the events of one watch until it ends, and returns the last resourceVersion it saw.
func pump(ctx context.Context, w watch.Interface, rv string, seen chan<- podSeen) (string, error) {
	for {
		select {
		case <-ctx.Done():
			return rv, ctx.Err()
		case e, ok := <-w.ResultChan():
			if !ok {
				return rv, nil
			}
			pod, isPod := e.Object.(*corev1.Pod)
			if e.Type == watch.Error || !isPod {
				return rv, errRelist
			}
			rv = pod.ResourceVersion
			if e.Type == watch.Bookmark {
				continue
			}
			s := podSeen{uid: pod.UID, gone: e.Type == watch.Deleted, deletion: deletionOf(pod)}
			if !send(ctx, seen, s) {
				return rv, ctx.Err()
			}
		}
	}
}

func send(ctx context.Context, seen chan<- podSeen, s podSeen) bool {
	select {
	case seen <- s:
		return true
	case <-ctx.Done():
		return false
	}
}

func deletionOf(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Time
}
