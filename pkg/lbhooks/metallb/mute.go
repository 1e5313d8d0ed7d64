package metallb

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// A speaker that hangs obeys no label. Its BGP sessions stand until its peers give them up, and by L2 clients send to its
// node until another has noticed and announced itself, whatever status objects say meanwhile. It shows by a speaker that
// runs and is not Ready on a node that is. One that is dead announces nothing.

// speakerLabels select the speakers of the usual installations.
var speakerLabels = []string{"app=metallb,component=speaker", "app.kubernetes.io/name=metallb,app.kubernetes.io/component=speaker"}

// mute lists the nodes with a speaker that is not Ready although the node is, sorted.
func (w *world) mute() []string {
	if len(w.speakers.hanging) == 0 {
		return nil
	}
	var out []string
	for _, n := range w.nodes {
		if w.speakers.hanging[n.Name] && nodeReady(n) {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return out
}

// speakerUnseen is added to what the statuses alone prove.
const speakerUnseen = "; whether its speaker hangs was not seen, pods may not be listed"

// mute says which speaker of a Ready node is not Ready now; "" when none is, or nobody can tell: then note says so.
func (h *Hook) mute(ctx context.Context, node *corev1.Node) (why, note string) {
	if h.client == nil || !nodeReady(node) {
		return "", ""
	}
	for _, labels := range speakerLabels {
		pods, err := h.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			LabelSelector: labels, FieldSelector: "spec.nodeName=" + node.Name,
		})
		if err != nil {
			note = speakerUnseen // it may be forbidden: the status stands alone then
			continue
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Spec.NodeName == node.Name && hangs(pod) {
				return "its speaker " + pod.Namespace + "/" + pod.Name + " is not Ready: what it announced may stand", ""
			}
		}
		if len(pods.Items) > 0 {
			break // an installation has one kind of labels
		}
	}
	return "", note
}

// hangs reports whether a speaker is not Ready although it has not ended.
func hangs(pod *corev1.Pod) bool {
	dead := func(c corev1.ContainerStatus) bool { return c.State.Waiting != nil || c.State.Terminated != nil }
	return !lbhooks.PodReady(pod) && !slices.ContainsFunc(pod.Status.ContainerStatuses, dead)
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
