package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// relistWithin bounds the wait for the EndpointSlice controller to list a pod again.
const relistWithin = 30 * time.Second

// unhold gives the pods of a node that are held back to their Services, where that is exact: first the label, then, once
// the controller lists the pod again, the slice of ours goes. Pods that their owner has released stay as they are, and
// warn says so. It returns the Services that have pods back, sorted.
func (r *Runner) unhold(ctx context.Context, stop *stopper, node string, warn func(string)) ([]string, error) {
	pods, err := r.podsOn(ctx, node)
	if err != nil {
		return nil, err
	}
	own, err := r.ownSlices(ctx, node)
	if err != nil {
		return nil, err
	}
	var back []string
	for i := range pods {
		p := &pods[i]
		h, held := guard.HeldOf(p)
		mine := slices.DeleteFunc(slices.Clone(own), func(s discoveryv1.EndpointSlice) bool { return endpointOf(&s, p.UID) == nil })
		if !held && len(mine) == 0 || p.DeletionTimestamp != nil {
			continue
		}
		if held && h.Forward {
			warn(fmt.Sprintf("pod %s/%s was released by its owner when it was held and goes only forward: it serves on %s until kubectl -n %s delete pod %s",
				p.Namespace, p.Name, node, p.Namespace, p.Name))
			continue
		}
		if err := r.show(ctx, p, &h); err != nil {
			return back, err
		}
		for j := range mine {
			service := guard.Key{Namespace: mine[j].Namespace, Name: mine[j].Labels[discoveryv1.LabelServiceName]}
			if err := r.relisted(ctx, stop, service, p); err != nil {
				return back, err
			}
			if err := r.dropSlice(ctx, mine[j].Namespace, mine[j].Name); err != nil {
				return back, err
			}
			back = append(back, service.String())
		}
	}
	slices.Sort(back)
	return slices.Compact(back), nil
}

// show gives a pod the labels back that a hold changed, unless somebody changed them again since.
func (r *Runner) show(ctx context.Context, pod *corev1.Pod, h *guard.Held) error {
	return r.relabel(ctx, pod, func(now *corev1.Pod) map[string]any {
		if _, held := guard.HeldOf(now); !held {
			return nil
		}
		labels := map[string]any{}
		for k, v := range h.Labels {
			if now.Labels[k] == guard.HeldValue(now.UID) {
				labels[k] = v
			}
		}
		return map[string]any{"labels": labels, "annotations": map[string]any{guard.AnnotationHeld: nil}}
	})
}

// relisted waits until the controller lists a pod again for a Service that selects it.
func (r *Runner) relisted(ctx context.Context, stop *stopper, service guard.Key, pod *corev1.Pod) error {
	for start := r.Clock.Now(); ; {
		have, err := r.slicesOf(ctx, service)
		if err != nil {
			return err
		}
		if listed(have, pod.UID) {
			return nil
		}
		now, err := r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && (now.UID != pod.UID || now.DeletionTimestamp != nil) {
			return nil // its slices go with it
		}
		if r.Clock.Since(start) > relistWithin {
			return fmt.Errorf("pod %s/%s has its labels back, but the EndpointSlice controller does not list it for %s after %s",
				pod.Namespace, pod.Name, service, relistWithin)
		}
		if err := stop.pause(ctx, r.Clock, holdPoll); err != nil {
			return err
		}
	}
}

// ownSlices lists the slices of holds with an endpoint on a node.
func (r *Runner) ownSlices(ctx context.Context, node string) ([]discoveryv1.EndpointSlice, error) {
	list, err := r.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + managedBy})
	if err != nil {
		return nil, fmt.Errorf("list the EndpointSlices of holds: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(s discoveryv1.EndpointSlice) bool {
		return !ours(&s) || !slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.NodeName != nil && *e.NodeName == node })
	}), nil
}

func (r *Runner) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %q: %w", node, err)
	}
	return list.Items, nil
}

// holdsOn reports whether something of a hold stands on a node, by objects that were read.
func holdsOn(s *cluster.Snapshot, hooks Hooks, node string) bool {
	ix := s.Index(hooks, []string{node})
	for pod := range ix.Pods(node) {
		if _, held := guard.HeldOf(pod); held {
			return true
		}
	}
	objects := ix.Objects()
	for svc := range ix.ServicesOn(node) {
		if slices.ContainsFunc(objects.Slices(svc.Key.Namespace, svc.Key.Name), ours) {
			return true
		}
	}
	return false
}

// planHolds reports whether a plan holds pods.
func planHolds(p *guard.DrainPlan) bool {
	return slices.ContainsFunc(p.Services, func(s guard.ServicePlan) bool { return s.Hold != nil })
}

// unholdAll gives held pods back after an uncordon, and says for which Services.
func (w *restoring) unholdAll(ctx context.Context) error {
	started := w.Clock.Now()
	back, err := w.unhold(ctx, w.stop, w.name, w.warn)
	for _, service := range back {
		w.returned(service, "hold", "its pods are selected again", w.Clock.Since(started))
	}
	return err
}

// unholdStray does so on a node without a claim, where a hold may have been left by whoever removed the claim.
func (w *restoring) unholdStray(ctx context.Context) error {
	pods, err := w.podsOn(ctx, w.name)
	if err != nil || !slices.ContainsFunc(pods, func(p corev1.Pod) bool { _, held := guard.HeldOf(&p); return held }) {
		return nil //nolint:nilerr // the node is uncordoned, which is what was asked for; most users hold nothing
	}
	return w.unholdAll(ctx)
}
