package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Two looks at whether Services are covered again are this far apart: the longer it takes, the more.
const (
	coverPoll    = time.Second
	coverMaxPoll = 10 * time.Second
)

// comesWithin is how long a controller may take to make a pod in place of one that went.
const comesWithin = 5 * time.Second

// covered waits until every Service that was served from the node has as many endpoints as before, or as many as come: one
// that was scaled down meanwhile, or whose pods nothing brings back, is not waited for.
func (n *node) covered(ctx context.Context) error {
	started, before, still := n.Clock.Now(), "", time.Time{}
	for delay := coverPoll; len(n.want) > 0; delay = min(delay*2, coverMaxPoll) {
		missing, coming, err := n.missing(ctx)
		if err != nil {
			missing, coming = []string{"the cluster cannot be read: " + err.Error()}, true
		}
		elapsed := n.Clock.Since(started)
		switch {
		case len(missing) == 0:
			return nil
		case coming:
			still = time.Time{}
		case still.IsZero():
			still = n.Clock.Now()
		case n.Clock.Since(still) >= comesWithin:
			n.emit(Warned{Text: fmt.Sprintf("after node/%s %s, and no further pod is on its way: scaled down meanwhile, or nothing brings it back",
				n.name, joined(missing))})
			return nil
		}
		switch {
		case elapsed < n.opts.WaitTimeout:
		case err != nil:
			return fmt.Errorf("look whether every Service is covered again: %w", err)
		default:
			return &NotCovered{Missing: missing, After: n.opts.WaitTimeout.String()}
		}
		if now := joined(missing); now != before {
			before = now
			n.emit(Uncovered{Node: n.name, Missing: missing, Elapsed: elapsed, Timeout: n.opts.WaitTimeout})
		}
		if err := n.pause(ctx, delay); err != nil {
			return err
		}
	}
	return nil
}

// missing lists the Services that have fewer endpoints than before, and reports whether a pod of one of them is coming.
func (n *node) missing(ctx context.Context) (missing []string, coming bool, err error) {
	nodes := []string{n.name}
	if n.deleted {
		nodes = nil
	}
	snapshot, err := n.Load(ctx, nodes)
	var gone *cluster.NotFound
	if errors.As(err, &gone) {
		n.deleted, nodes = true, nil
		snapshot, err = n.Load(ctx, nil)
	}
	if err != nil {
		return nil, false, err
	}
	ix := snapshot.Index(n.Hooks, nodes)
	for service, want := range n.want {
		svc, ok := ix.Service(keyOf(service))
		if !ok || !svc.Local() {
			continue // gone, or of another policy by now
		}
		have := endpointsOf(ix, svc)
		if have >= want {
			continue
		}
		missing = append(missing, fmt.Sprintf("%s has %d of %d endpoints", service, have, want))
		more, err := n.coming(ctx, snapshot, svc.Key)
		if err != nil {
			return nil, false, err
		}
		coming = coming || more
	}
	slices.Sort(missing)
	return missing, coming, nil
}

// coming reports whether a Service has pods that live and are not Ready.
func (n *node) coming(ctx context.Context, snapshot *cluster.Snapshot, key guard.Key) (bool, error) {
	svc, ok := snapshot.RawService(key)
	if !ok || len(svc.Spec.Selector) == 0 {
		return false, nil
	}
	list, err := n.Client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(svc.Spec.Selector).String(),
	})
	if err != nil {
		return false, fmt.Errorf("list the pods of %s: %w", key, err)
	}
	return slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp == nil && !guard.Finished(&p) && !guard.PodReady(&p)
	}), nil
}

func keyOf(name string) guard.Key {
	namespace, name, _ := strings.Cut(name, "/")
	return guard.Key{Namespace: namespace, Name: name}
}

func joined(parts []string) string { return strings.Join(parts, "; ") }
