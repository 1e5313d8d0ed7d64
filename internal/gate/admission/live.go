package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Live reads objects as they are now, past every cache.
type Live interface {
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// LiveReads reads from the API server. A GET without a resourceVersion is answered from the store of the API server.
type LiveReads struct{ Client kubernetes.Interface }

var _ Live = LiveReads{}

// Pod reads a pod.
func (l LiveReads) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Node reads a node.
func (l LiveReads) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}
