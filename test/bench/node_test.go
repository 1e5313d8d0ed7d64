package bench

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// fullNode is a node with pods that no Service needs and that end at once. Their replacements stay Pending, since they are
// pinned to the node. Beside it two nodes serve a Local Service.
type fullNode struct {
	*controlplane.Env

	name string
	pods int
}

func newFullNode(t testing.TB, pods int) *fullNode {
	t.Helper()
	n := &fullNode{Env: whole(t).Env(t), pods: pods}
	n.name = n.Nodes(1)[0]
	n.Nodes(2, func(node *corev1.Node) { node.Labels["role"] = "edge" })
	n.Deployment("edge", 2, onNodesWith("role", "edge"))
	n.Service("edge")
	n.EndpointsReady("edge", 2)
	n.Deployment("web", int32(pods), onNodesWith(corev1.LabelHostname, n.name))
	return n
}

func onNodesWith(label, value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.NodeSelector[label] = value }
}

// wantEmpty fails the test when the node is not drained.
func (n *fullNode) wantEmpty() {
	n.Helper()
	list, err := n.Client.CoreV1().Pods(n.Namespace).List(n.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		n.Fatal(err)
	}
	if len(list.Items) > 0 {
		n.Errorf("%d pods are left on %s", len(list.Items), n.name)
	}
}

// remove takes the pods away, so that those that wait for a node burden nobody.
func (n *fullNode) remove() {
	n.Helper()
	background := metav1.DeletePropagationBackground
	err := n.Client.AppsV1().Deployments(n.Namespace).Delete(n.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil {
		n.Fatal(err)
	}
	n.Wait("pods of web gone", func(ctx context.Context) (bool, string, error) {
		list, err := n.Client.CoreV1().Pods(n.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=web"})
		return err == nil && len(list.Items) == 0, fmt.Sprintf("%d left", len(list.Items)), err
	})
}
