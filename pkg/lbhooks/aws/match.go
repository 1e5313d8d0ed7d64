package aws

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/pool"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// bindingKind is what ties a target group to a Service.
var bindingKind = schema.GroupKind{Group: "elbv2.k8s.aws", Kind: "TargetGroupBinding"}

// Names on nodes.
const (
	taintDisrupted = "karpenter.sh/disrupted"
)

// binding is one TargetGroupBinding.
type binding struct {
	name  string
	arn   string
	pods  bool            // spec.targetType ip
	nodes labels.Selector // spec.nodeSelector, nil when there is none
}

func keyOf(svc *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
}

// readBinding returns a binding and the Service that it is for.
func readBinding(u *unstructured.Unstructured) (types.NamespacedName, binding) {
	service, _, _ := unstructured.NestedString(u.Object, "spec", "serviceRef", "name")
	b := binding{name: u.GetName()}
	b.arn, _, _ = unstructured.NestedString(u.Object, "spec", "targetGroupARN")
	kind, _, _ := unstructured.NestedString(u.Object, "spec", "targetType")
	b.pods = kind == "ip"
	if spec, found, err := unstructured.NestedMap(u.Object, "spec", "nodeSelector"); found && err == nil {
		var selector metav1.LabelSelector
		if runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &selector) == nil {
			b.nodes, _ = metav1.LabelSelectorAsSelector(&selector)
		}
	}
	return types.NamespacedName{Namespace: u.GetNamespace(), Name: service}, b
}

// world is what the objects tell of AWS, the same for all Services.
type world struct {
	sample   []*corev1.Node // a node with a providerID of AWS, none where no node has one
	nodes    []*corev1.Node
	bindings map[types.NamespacedName][]binding
	barred   map[owner]func() map[string]lbhooks.Seat // nodes that an owner leaves out
}

func newWorld(objects lbhooks.Objects) *world {
	w := &world{
		nodes: objects.Nodes(), bindings: map[types.NamespacedName][]binding{}, barred: map[owner]func() map[string]lbhooks.Seat{},
	}
	w.sample = pool.Sample(w.nodes, func(n *corev1.Node) bool { return instanceOf(n) != "" })
	for _, u := range objects.Custom(bindingKind) {
		key, b := readBinding(u)
		w.bindings[key] = append(w.bindings[key], b)
	}
	for _, by := range []owner{controller, provider, nobody} {
		w.barred[by] = pool.LeftOut(w.nodes, func(n *corev1.Node) (lbhooks.Seat, bool) { return barred(n, by) })
	}
	return w
}

// barred follows the owners' own rules: aws-load-balancer-controller pkg/backend/endpoint_utils.go (presence of the label,
// two taints, condition Ready) and cloud-provider controllers/service/controller.go (value of the label, one taint).
func barred(n *corev1.Node, by owner) (lbhooks.Seat, bool) {
	excluded := lbhooks.ExcludedByValue
	switch {
	case by == nobody && !lbhooks.Virtual(n):
		return lbhooks.Seat{}, false
	case by == controller:
		excluded = lbhooks.ExcludedByPresence
	}
	if seat, out := pool.Barred(n, excluded, "AWS tells whether the node left"); out {
		return seat, true
	}
	switch {
	case by == controller && disrupted(n):
		return pool.Out("tainted " + taintDisrupted)
	case by == controller && !ready(n):
		return lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "not Ready: the controller registers Ready nodes"}, true
	}
	return lbhooks.Seat{}, false
}

// member is a node in the rotation.
const member = "registered"

func disrupted(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == taintDisrupted && t.Effect == corev1.TaintEffectNoSchedule {
			return true
		}
	}
	return false
}

// ready reads the condition; a node without one, as in a shortened dump, counts as Ready.
func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

// rotation tells which nodes a Service's balancer sends to, by its owner's rules and its health check.
func (h *Hook) rotation(w *world, f front, svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	r := lbhooks.Rotation{Hook: Name, Reason: f.reason, Seats: map[string]lbhooks.Seat{}, Shared: w.barred[f.owner]()}
	switch {
	case f.pods:
		podTargets(&r)
		return r
	case f.owner == nobody:
		r.Evidence = "target groups that the Service names; AWS alone knows the nodes in them"
		r.Rest = lbhooks.Seat{In: lbhooks.Unknown, Eligible: true, Why: "in a target group, or not"}
		r.Provable, r.Removal, r.Timeout = true, lbhooks.RemovalNone, h.patience()
		if h.options.Bool(optionDeregister) {
			r.Removal = lbhooks.RemovalHook
		} else {
			r.NoProof = "AWS tells whether the node is in its target groups, but nothing takes it out: --hook-option aws.deregister=true does"
		}
		r.HealthCheck = statedCheck(svc)
		return r
	}
	r.Provable, r.Removal, r.Timeout = true, lbhooks.RemovalLabel, h.patience()
	r.Evidence = "the rule of the " + string(f.owner) + ": every node without the exclude label"
	pool.Open(&r, member)
	w.narrow(&r, f, svc)
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		w.probed(&r, f, svc, objects)
	}
	return r
}

// patience is how long a proof may take: a controller has to act first, and the whole deregistration delay passes, by
// default five minutes, where only absence counts.
func (h *Hook) patience() time.Duration {
	if h.options.Text(optionProof) == proofAbsent || h.options.Has(optionSettle) && h.options.Duration(optionSettle, 0) == 0 {
		return 10 * time.Minute
	}
	return 2 * time.Minute
}

// podTargets is the rotation of a balancer that sends to pods: no node is in it, whatever its labels. A pod that is
// evicted leaves by itself, and gets new connections until the balancer has let go of it.
func podTargets(r *lbhooks.Rotation) {
	r.Evidence = "ip targets: the balancer sends to pods, past nodes; its removal follows each pod"
	r.Removal, r.Follows, r.Shared = lbhooks.RemovalNone, true, nil
	r.Rest = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "ip targets: the node itself is sent nothing"}
	r.PodTargets = &lbhooks.HealthCheck{
		Interval: SettleNetwork, Unhealthy: 1, Source: "a network balancer sends on for about two minutes after it deregisters a target",
	}
}

// statedCheck is the check that the Service states by our own annotation, for a balancer that nobody else configures.
func statedCheck(svc *corev1.Service) *lbhooks.HealthCheck {
	text, ok := svc.Annotations[lbhooks.AnnotationHealthCheck]
	if !ok {
		return nil
	}
	hc, err := timing.Parse(text)
	if err != nil {
		return nil
	}
	return &hc
}

// narrow bars the nodes that the Service or all of its bindings leave out by a selector.
func (w *world) narrow(r *lbhooks.Rotation, f front, svc *corev1.Service) {
	var selectors []labels.Selector
	if text := svc.Annotations[annotationNodeLabels]; text != "" {
		if s, err := labels.Parse(text); err == nil {
			selectors = append(selectors, s)
		}
	}
	for _, b := range f.bindings {
		if !b.pods && b.nodes != nil {
			selectors = append(selectors, b.nodes)
		}
	}
	if len(selectors) == 0 {
		return
	}
	for _, n := range w.nodes {
		selected := false
		for _, s := range selectors {
			selected = selected || s.Matches(labels.Set(n.Labels))
		}
		if _, out := r.Shared[n.Name]; !selected && !out {
			r.Seats[n.Name] = lbhooks.Seat{In: lbhooks.No, Why: "not selected as a target"}
		}
	}
}

// probed narrows the seats to nodes with a ready endpoint, where the balancer's probe goes to healthCheckNodePort, or to
// the node port, which drops what no local endpoint takes.
func (w *world) probed(r *lbhooks.Rotation, f front, svc *corev1.Service, objects lbhooks.Objects) {
	hc, err := timing.Known(svc, w.sample)
	if err != nil {
		r.Evidence += "; its health check is not known: " + err.Error()
		return
	}
	probesNodePort := len(f.bindings) > 0 && svc.Spec.Type == corev1.ServiceTypeNodePort
	if hc == nil && !probesNodePort {
		return
	}
	pool.Narrow(r, member, hc, objects.Slices(svc.Namespace, svc.Name))
}

// settleFor is the time to wait after a proof about targets of a protocol.
func (h *Hook) settleFor(network bool) time.Duration {
	if network {
		return h.options.Duration(optionSettle, SettleNetwork)
	}
	return h.options.Duration(optionSettle, SettleOther)
}
