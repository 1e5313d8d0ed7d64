package guard

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Index finds the facts. It decides nothing. An implementation may build a ServiceFacts when it is asked for, so callers
// keep no more than the one they work on. Sequences are sorted by name, so that two runs over one cluster agree.
type Index interface {
	// Node returns the node of that name.
	Node(name string) (*NodeFacts, bool)
	// Nodes lists every node of the cluster.
	Nodes() iter.Seq[*NodeFacts]
	// Service returns the Service of that name; false when there is none or when kube-proxy would skip it.
	Service(Key) (*ServiceFacts, bool)
	// Services lists every Service that kube-proxy serves, of policy Local or not.
	Services() iter.Seq[*ServiceFacts]
	// ServicesOn lists the Services with an endpoint on that node, of policy Local or not; for "" those with an endpoint
	// that names no node.
	ServicesOn(node string) iter.Seq[*ServiceFacts]
	// Pods lists the pods bound to that node. Nothing for a node that was not asked for when the Index was built.
	Pods(node string) iter.Seq[*corev1.Pod]
	// Pod returns a pod that is at hand; false means that it is not at hand, not that it does not exist.
	Pod(types.UID) (*corev1.Pod, bool)
	// Budgets lists the PodDisruptionBudgets of a namespace.
	Budgets(namespace string) iter.Seq[*policyv1.PodDisruptionBudget]
	// DaemonSetExists reports whether the DaemonSet that a pod names as its controller is there.
	DaemonSetExists(Key) bool
	// Workloads lists the workloads of a namespace; nothing unless the Index was built for an audit.
	Workloads(namespace string) iter.Seq[*Workload]
}
