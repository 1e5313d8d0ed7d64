package metallb

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Prove makes one observation of the status objects. L2: exactly one other node is named. BGP: no status names the node,
// no L2 status does either, and what its FRR runs, where that can be read, has no prefix of the Service.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.dynamic == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(h.name, "there is no API server to ask", nil)
	}
	if h.name == L2 {
		return h.proveL2(ctx, t)
	}
	return h.proveBGP(ctx, t)
}

func (h *Hook) proveL2(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	found, err := h.statuses(ctx, L2Statuses, t.Service)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	p, over := h.half.takenOver(found, t.Node.Name)
	if !over {
		if still, names := h.stillNamed(ctx, found, "ServiceL2Status", t.Node.Name); names {
			return still, nil
		}
		p = movedTo(nodesNamed(found))
	}
	if !p.Out {
		return p, nil
	}
	// Only what is to be believed is worth a look at the speaker.
	speaker, note := h.mute(ctx, t.Node)
	if speaker != "" {
		return lbhooks.Proof{Evidence: speaker}, nil
	}
	p.Evidence += note
	return p, nil
}

// movedTo is what L2 statuses prove that name these nodes, the one that is to leave not among them.
func movedTo(nodes []string) lbhooks.Proof {
	switch len(nodes) {
	case 0:
		return lbhooks.Proof{Evidence: "no ServiceL2Status of the Service: no other node has taken over yet, or none says so: " +
			"after a partition speakers may not until the Service changes, by any annotation"}
	case 1:
		return lbhooks.Proof{Out: true, By: nodes[0], Evidence: fmt.Sprintf("ServiceL2Status names %s only", nodes[0]) + lbhooks.NeighboursUnseen}
	}
	return lbhooks.Proof{Evidence: "ServiceL2Status names " + strings.Join(nodes, " and ") + ": not settled who announces"}
}

func (h *Hook) proveBGP(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	found, err := h.statuses(ctx, BGPStatuses, t.Service)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	if p, still := h.stillNamed(ctx, found, "ServiceBGPStatus", t.Node.Name); still {
		return p, nil
	}
	// A Service can be advertised both ways. MetalLB before v0.14 has no L2 status: then there is none to ask.
	l2, err := h.statuses(ctx, L2Statuses, t.Service)
	if err != nil && !apierrors.IsNotFound(err) {
		return lbhooks.Proof{}, err
	}
	if p, still := h.stillNamed(ctx, l2, "ServiceL2Status", t.Node.Name); still {
		return p, nil
	}
	speaker, note := h.mute(ctx, t.Node)
	if speaker != "" {
		return lbhooks.Proof{Evidence: "no ServiceBGPStatus names " + t.Node.Name + ", but " + speaker}, nil
	}
	others := nodesNamed(found)
	evidence := fmt.Sprintf("no ServiceBGPStatus names %s, %d other nodes announce%s", t.Node.Name, len(others), note)
	return h.askFRR(ctx, t, evidence)
}

// askFRR looks at what the node's FRR really runs. Where that cannot be seen the status stands alone, and FRR's debounce
// is waited for.
func (h *Hook) askFRR(ctx context.Context, t lbhooks.Target, evidence string) (lbhooks.Proof, error) {
	state, err := h.dynamic.Resource(NodeStates).Get(ctx, t.Node.Name, metav1.GetOptions{})
	unseen := func(why string) (lbhooks.Proof, error) {
		p := lbhooks.Proof{Out: true, Evidence: evidence + "; " + why}
		if !h.native.Load() {
			p.Settle = after(settleUnseenFRR)
		}
		return p, nil
	}
	switch {
	case apierrors.IsNotFound(err):
		return unseen("there is no FRRNodeState to confirm it")
	case apierrors.IsForbidden(err):
		return unseen("frrnodestates." + frrGroup + " may not be read to confirm it")
	case err != nil:
		return lbhooks.Proof{}, lbhooks.ReadFailed(h.name, "get", "frrnodestates."+frrGroup, err)
	}
	text, _, _ := unstructured.NestedString(state.Object, "status", "runningConfig")
	if text == "" {
		return unseen("FRRNodeState shows no running configuration")
	}
	if prefix, ok := covering(networks(text), lbhooks.Addresses(t.Service)); ok {
		reload, _, _ := unstructured.NestedString(state.Object, "status", "lastReloadResult")
		still := fmt.Sprintf("FRRNodeState %s still runs network %s", t.Node.Name, prefix)
		if reload != "" && reload != "success" {
			still += ", last reload: " + firstLine(reload)
		}
		return lbhooks.Proof{Evidence: still}, nil
	}
	return lbhooks.Proof{Out: true, Settle: after(settle), Evidence: evidence + "; FRRNodeState runs no prefix of the Service"}, nil
}

// stillNamed reports whether a status names the node, with evidence that says which and how its speaker is.
func (h *Hook) stillNamed(ctx context.Context, found []status, kind, node string) (lbhooks.Proof, bool) {
	i := slices.IndexFunc(found, func(s status) bool { return s.names(node) })
	if i < 0 {
		return lbhooks.Proof{}, false
	}
	s := &found[i]
	text := fmt.Sprintf("%s %s/%s still names %s", kind, s.namespace, s.name, node)
	if s.created != "" {
		text += ", created " + s.created
	}
	if speaker := h.speakerState(ctx, s); speaker != "" {
		text += "; " + speaker
	}
	return lbhooks.Proof{Evidence: text}, true
}

// speakerState says what is wrong with the speaker that owns a status: a dead one leaves its status behind until its pod
// object is collected. "" when nothing is wrong or nobody can tell.
func (h *Hook) speakerState(ctx context.Context, s *status) string {
	if h.client == nil || s.speaker == "" {
		return ""
	}
	name := s.namespace + "/" + s.speaker
	pod, err := h.client.CoreV1().Pods(s.namespace).Get(ctx, s.speaker, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "its speaker " + name + " is gone, the status is left over"
	case err != nil || lbhooks.PodReady(pod):
		return ""
	}
	return "its speaker " + name + " is not Ready" + waitingFor(pod)
}

func waitingFor(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		if w := pod.Status.ContainerStatuses[i].State.Waiting; w != nil && w.Reason != "" {
			return ": " + w.Reason
		}
	}
	return ""
}

// statuses lists the status objects of one Service. They live in MetalLB's namespace, whatever that is called.
func (h *Hook) statuses(ctx context.Context, kind schema.GroupVersionResource, svc *corev1.Service) ([]status, error) {
	selector := labels.Set{LabelServiceName: svc.Name, LabelServiceNamespace: svc.Namespace}
	list, err := h.dynamic.Resource(kind).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, lbhooks.ReadFailed(h.name, "list", kind.Resource+"."+kind.Group, err)
	}
	out := make([]status, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, statusOf(&list.Items[i]).withOrigin(&list.Items[i]))
	}
	return out, nil
}

func after(d time.Duration) *time.Duration { return &d }

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
