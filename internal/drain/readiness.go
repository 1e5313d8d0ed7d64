package drain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// schedulingWithin is how long after a node takes pods again those without a node may still come to it: the scheduler
// tries one that fitted nowhere again after ten seconds at most (podMaxBackoffSeconds).
const schedulingWithin = 10 * time.Second

// readiness is whether a node may be sent to again.
type readiness struct {
	service, hook string // which Service has to wait, and who fronts it
	waits         string // what has to come first, for people; "" when nothing has
	firm          bool   // without it the node would drop what it is sent: it stays out even when the time is over
	empty         bool   // no pod of the Service is on the node or coming, and the balancer would send there all the same
	how           string // why kube-proxy is taken to know the pods, "" when nobody had to ask
}

// about adds the Service to a text, where one has to wait and not the node.
func (r *readiness) about(text string) string {
	if r.service == "" {
		return text
	}
	return r.service + ": " + text
}

// look is one look at the cluster.
type look struct {
	snapshot *cluster.Snapshot
	index    *cluster.Index
	homeless []corev1.Pod // that have no node yet and may come to this one
}

// look lists the pods without a node before those of the node: one that is bound in between is in both, and not in neither.
func (w *restoring) look(ctx context.Context) (l *look, err error) {
	l = &look{}
	if w.Clock.Since(w.schedulable) < schedulingWithin {
		if l.homeless, err = w.homeless(ctx); err != nil {
			return nil, err
		}
	}
	if l.snapshot, err = w.Load(ctx, []string{w.name}); err != nil {
		return nil, err
	}
	l.index = l.snapshot.Index(w.Hooks, []string{w.name})
	return l, nil
}

// homeless lists the pods without a node.
func (w *restoring) homeless(ctx context.Context) ([]corev1.Pod, error) {
	list, err := w.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", "").String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods without a node: %w", err)
	}
	return list.Items, nil
}

// readiness judges one absence. The label is one for all Services that it keeps the node out of: it stays while one of
// them has to wait, and one that would be dropped counts before one that merely has a pod coming.
func (w *restoring) readiness(ctx context.Context, l *look, a absence) (readiness, error) {
	if node, ok := l.snapshot.RawNode(w.name); ok && !nodeReady(node) {
		return readiness{service: a.service, hook: a.hook, waits: "the node is not Ready", firm: true}, nil
	}
	if a.hook != "" {
		r, err := w.serves(ctx, l, keyOf(a.service))
		r.service, r.hook = a.service, a.hook
		return r, err
	}
	var first readiness
	for _, key := range w.labelled(l) {
		r, err := w.serves(ctx, l, key)
		if err != nil {
			return r, err
		}
		if r.how != "" {
			w.how[key] = r.how
		}
		if r.waits != "" && (first.waits == "" || r.firm && !first.firm) {
			first = r
		}
	}
	return first, nil
}

// labelled lists, sorted, the Services whose balancer goes by the label: of those that the claim names and those that have
// an endpoint on the node.
func (w *restoring) labelled(l *look) []guard.Key {
	keys := map[guard.Key]bool{}
	for name := range w.held.Claim().Services {
		keys[keyOf(name)] = true
	}
	for svc := range l.index.ServicesOn(w.name) {
		keys[svc.Key] = true
	}
	maps.DeleteFunc(keys, func(key guard.Key, _ bool) bool {
		svc, ok := l.index.Service(key)
		return !ok || svc.Rotation.Removal != guard.RemovalLabel
	})
	return slices.SortedFunc(maps.Keys(keys), guard.Key.Compare)
}

// serves says whether the node can serve a Service, or what has to come first.
func (w *restoring) serves(ctx context.Context, l *look, key guard.Key) (readiness, error) {
	facts, ok := l.index.Service(key)
	svc, there := l.snapshot.RawService(key)
	if !ok || !there || !facts.External || asksKubeProxy(&facts.Rotation) {
		return readiness{}, nil // of policy Cluster: the node forwards as soon as it is Ready
	}
	r := readiness{service: key.String(), hook: facts.Rotation.Hook}
	cover := guard.Cover(facts)
	state, _ := cover.State(w.name)
	if state == guard.StateServing {
		known, detail, err := w.proxy.knows(ctx, lbhooks.Target{Service: svc, Node: w.held.Node()}, w.answering(l, &cover))
		if r.how = detail; !known {
			r.how, r.waits, r.firm = "", detail, true
		}
		return r, err
	}
	w.proxy.forget(key)
	if state == guard.StateTerminating && (facts.Rotation.FollowsServing || !facts.Rotation.Follows) {
		r.waits, r.firm = "its pods on "+w.name+" terminate", true
		return r, nil
	}
	r.waits = l.coming(svc, w.name)
	r.firm = r.waits != "" && !facts.Rotation.Follows
	r.empty = r.waits == "" && !facts.Rotation.Follows
	return r, nil
}

// asksKubeProxy reports whether a balancer itself asks kube-proxy of a node before it sends there: then it sees for itself.
func asksKubeProxy(r *guard.Rotation) bool {
	return r.Follows && r.HealthCheck != nil && !r.FollowsServing
}

// answering lists a few nodes whose health check port of a Service should answer, whatever it says.
func (w *restoring) answering(l *look, cover *guard.Coverage) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range cover.Nodes() {
		if node, ok := l.snapshot.RawNode(name); ok && name != w.name && nodeReady(node) && len(out) < namedNodes {
			out = append(out, node)
		}
	}
	return out
}

// coming says which pod of a Service is on its way to a node; "" when none is.
func (l *look) coming(svc *corev1.Service, node string) string {
	if name := boundPod(l.index, svc, node); name != "" {
		return "pod " + name + " is not Ready"
	}
	for i := range l.homeless {
		if p := &l.homeless[i]; comesTo(p, svc) && len(p.Spec.SchedulingGates) == 0 {
			return "pod " + p.Name + " has no node yet"
		}
	}
	return ""
}

// boundPod names a pod of the Service that is bound to the node and lives; "" when there is none.
func boundPod(ix guard.Index, svc *corev1.Service, node string) string {
	for pod := range ix.Pods(node) {
		if comesTo(pod, svc) {
			return pod.Name
		}
	}
	return ""
}

// comesTo reports whether a Service selects a pod that lives.
func comesTo(pod *corev1.Pod, svc *corev1.Service) bool {
	return pod.DeletionTimestamp == nil && !guard.Finished(pod) && pod.Namespace == svc.Namespace &&
		len(svc.Spec.Selector) > 0 && guard.Selects(svc.Spec.Selector, pod.Labels)
}
