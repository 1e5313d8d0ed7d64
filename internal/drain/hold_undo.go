package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// relistWithin bounds the wait for the EndpointSlice controller to list a pod again.
const relistWithin = 30 * time.Second

// unhold gives the pods of a node that are held back to their Services, where that is exact: first the labels, then, once
// the controller lists a pod again, the slices of ours go. Pods that their owner has released stay as they are, and warn
// says so. It returns the Services that have pods back, sorted; a pod that cannot be given back stops no other.
func (r *Runner) unhold(ctx context.Context, stop *stopper, node string, warn func(string)) ([]string, error) {
	pods, err := r.podsOn(ctx, node)
	if err != nil {
		return nil, err
	}
	own, err := r.ownSlices(ctx, node)
	if err != nil {
		return nil, err
	}
	u := &unholding{Runner: r, stop: stop, own: own, services: map[string]bool{}}
	var shown []*corev1.Pod
	for i := range pods {
		p := &pods[i]
		h, held := guard.HeldOf(p)
		switch {
		case !held && len(u.of(p)) == 0, p.DeletionTimestamp != nil:
			continue
		case held && h.Forward:
			warn(fmt.Sprintf("pod %s/%s was released by its owner when it was held and goes only forward: it serves on %s until kubectl -n %s delete pod %s",
				p.Namespace, p.Name, node, p.Namespace, p.Name))
			continue
		}
		if err := r.show(ctx, p, &h); err != nil {
			u.failed(err, u.of(p)...)
			continue
		}
		shown = append(shown, p)
	}
	u.uncover(ctx, shown)
	return u.back(), errors.Join(u.wrong...)
}

// unholding is the undoing of the holds on one node.
type unholding struct {
	*Runner
	stop     *stopper
	own      []discoveryv1.EndpointSlice // of holds on the node
	services map[string]bool             // the value: every pod of it is back
	wrong    []error
}

// of lists the slices that name a pod.
func (u *unholding) of(pod *corev1.Pod) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for i := range u.own {
		if endpointOf(&u.own[i], pod.UID) != nil {
			out = append(out, &u.own[i])
		}
	}
	return out
}

func (u *unholding) failed(err error, of ...*discoveryv1.EndpointSlice) {
	u.wrong = append(u.wrong, err)
	for _, s := range of {
		u.services[serviceOf(s).String()] = false
	}
}

// back are the Services that have all their pods back, sorted.
func (u *unholding) back() []string {
	var out []string
	for name, all := range u.services {
		if all {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// uncover deletes the slices of pods that have their labels back, each once the controller lists the pod.
func (u *unholding) uncover(ctx context.Context, pods []*corev1.Pod) {
	start := u.Clock.Now()
	for _, p := range pods {
		for _, s := range u.of(p) {
			err := u.relisted(ctx, u.stop, relisting{serviceOf(s), p, start})
			if err == nil {
				err = u.dropSlice(ctx, s.Namespace, s.Name)
			}
			if err != nil {
				u.failed(err, s)
				if u.stop.Err() != nil || ctx.Err() != nil {
					return
				}
				continue
			}
			if _, known := u.services[serviceOf(s).String()]; !known {
				u.services[serviceOf(s).String()] = true
			}
		}
	}
}

func serviceOf(s *discoveryv1.EndpointSlice) guard.Key {
	return guard.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
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

// relisting is the wait for a pod to be listed again for a Service.
type relisting struct {
	service guard.Key
	pod     *corev1.Pod
	since   time.Time
}

// relisted waits until the controller lists a pod again for a Service, unless it never will.
func (r *Runner) relisted(ctx context.Context, stop *stopper, w relisting) error {
	for {
		have, err := r.slicesOf(ctx, w.service)
		if err != nil {
			return err
		}
		if listed(have, w.pod.UID) {
			return nil
		}
		never, err := r.neverListed(ctx, w.service, w.pod)
		if err != nil || never {
			return err
		}
		if r.Clock.Since(w.since) > relistWithin {
			return fmt.Errorf("pod %s/%s has its labels back, but the EndpointSlice controller does not list it for %s after %s",
				w.pod.Namespace, w.pod.Name, w.service, relistWithin)
		}
		if err := stop.pause(ctx, r.Clock, holdPoll); err != nil {
			return err
		}
	}
}

// neverListed reports whether no controller will list a pod for a Service: the Service is gone or selects others by now,
// or the pod is gone or over.
func (r *Runner) neverListed(ctx context.Context, service guard.Key, pod *corev1.Pod) (bool, error) {
	now, err := r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case now.UID != pod.UID || now.DeletionTimestamp != nil || guard.Finished(now):
		return true, nil
	}
	// A list, for that is what a drain may do with Services.
	list, err := r.Client.CoreV1().Services(service.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", service.Name).String()})
	if err != nil {
		return false, fmt.Errorf("read Service %s: %w", service, err)
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Name == service.Name {
			return !guard.Selects(s.Spec.Selector, now.Labels), nil
		}
	}
	return true, nil
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

// unholdAll gives held pods back after an uncordon, and says for which Services. What stays held is returned, and so is
// the reason to stop at once.
func (w *restoring) unholdAll(ctx context.Context) (stays string, err error) {
	started := w.Clock.Now()
	back, err := w.unhold(ctx, w.stop, w.name, w.warn)
	for _, service := range back {
		w.returned(service, "hold", "its pods are selected again", w.Clock.Since(started))
	}
	if err == nil || w.stop.Err() != nil || ctx.Err() != nil {
		return "", err
	}
	return "pods that are held: " + oneLine(err), nil
}

// oneLine writes joined errors in one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// unholdStray does so on a node without a claim, where a hold may have been left by whoever removed the claim.
func (w *restoring) unholdStray(ctx context.Context) error {
	pods, err := w.podsOn(ctx, w.name)
	if err != nil || !slices.ContainsFunc(pods, func(p corev1.Pod) bool { _, held := guard.HeldOf(&p); return held }) {
		return nil //nolint:nilerr // the node is uncordoned, which is what was asked for; most users hold nothing
	}
	stays, err := w.unholdAll(ctx)
	if err == nil && stays != "" {
		err = w.staysOut([]string{stays})
	}
	return err
}
