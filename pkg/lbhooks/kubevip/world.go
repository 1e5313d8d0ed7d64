package kubevip

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// world is everything of kube-vip in one set of objects, read once for all Services.
type world struct {
	installs []*install                      // none: every node is taken to run a kube-vip as it comes
	nodes    func() map[string]*corev1.Node  // by name
	holder   map[types.NamespacedName]string // by Lease: the node that holds it
}

// install is the pods of kube-vip that announce Services and are set up alike; a cluster may have several for different
// Services.
type install struct {
	config config
	agents map[string]*corev1.Pod // by node; the Ready one of two
	known  bool                   // such a pod is at hand
	stuck  string                 // why no label takes kube-vip off a node; "" when the exclude label does
}

func newWorld(objects lbhooks.Objects) *world {
	nodes := objects.Nodes()
	w := &world{holder: map[types.NamespacedName]string{}, nodes: sync.OnceValue(func() map[string]*corev1.Node {
		byName := make(map[string]*corev1.Node, len(nodes))
		for _, n := range nodes {
			byName[n.Name] = n
		}
		return byName
	})}
	nodeOf := sync.OnceValue(func() map[string]string { return byWhatTheyAreCalled(nodes) })
	w.readAgents(objects)
	for _, u := range objects.Custom(schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}) {
		if id, _, _ := unstructured.NestedString(u.Object, "spec", "holderIdentity"); id != "" {
			node, ok := nodeOf()[id]
			if !ok {
				node = id
			}
			w.holder[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = node
		}
	}
	return w
}

// byWhatTheyAreCalled returns the names of nodes by what kube-vip may call them: by their names, or by their hosts'.
func byWhatTheyAreCalled(nodes []*corev1.Node) map[string]string {
	out := map[string]string{}
	for _, n := range nodes {
		if host := n.Labels[corev1.LabelHostname]; host != "" {
			out[host] = n.Name
		}
	}
	for _, n := range nodes {
		out[n.Name] = n.Name
	}
	return out
}

// readAgents notes the pods that announce Services, how they are set up, and whether the label moves them.
func (w *world) readAgents(objects lbhooks.Objects) {
	for _, pod := range objects.Agents(Name) {
		c := configOf(pod)
		if pod.Spec.NodeName == "" || !c.services {
			continue
		}
		i := slices.IndexFunc(w.installs, func(in *install) bool { return in.config == c })
		if i < 0 {
			i = len(w.installs)
			w.installs = append(w.installs, &install{config: c, known: true, agents: map[string]*corev1.Pod{}})
		}
		in := w.installs[i]
		if old := in.agents[pod.Spec.NodeName]; old == nil || !lbhooks.PodReady(old) {
			in.agents[pod.Spec.NodeName] = pod
		}
		if why := w.moves(pod, objects); why != "" {
			in.stuck = why
		}
	}
}

// of returns the install that announces a Service and why, and whether a second one does too; nil for none.
func (w *world) of(svc *corev1.Service) (in *install, reason string, differ bool) {
	if len(w.installs) == 0 {
		in = &install{config: defaultConfig(), stuck: "no DaemonSet of kube-vip is seen, so no label takes it off a node"}
		if reason = w.shows(&in.config, svc); reason == "" {
			return nil, "", false
		}
		return in, reason, false
	}
	for _, i := range w.installs {
		switch why := i.config.claims(svc); {
		case why == "":
		case in == nil:
			in, reason = i, why
		default:
			differ = true
		}
	}
	return in, reason, differ
}

// moves says why the exclude label does not take a kube-vip pod off its node; "" when it does: then its DaemonSet selects
// the node without the label and does not with it. The pod itself does not tell, since the DaemonSet controller puts a
// rule of its own in place of the template's.
func (w *world) moves(pod *corev1.Pod, objects lbhooks.Objects) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" {
		return fmt.Sprintf("pod %s/%s is of no DaemonSet, so no label takes kube-vip off a node", pod.Namespace, pod.Name)
	}
	set, ok := objects.DaemonSet(pod.Namespace, owner.Name)
	node := w.nodes()[pod.Spec.NodeName]
	if !ok || node == nil {
		return fmt.Sprintf("DaemonSet %s/%s is not at hand, so nothing shows that a label takes kube-vip off a node", pod.Namespace, owner.Name)
	}
	rule := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: set.Spec.Template.Spec})
	if !lbhooks.LabelRemoves(node, func(n *corev1.Node) bool {
		match, err := rule.Match(n)
		return err == nil && match
	}) {
		return fmt.Sprintf("DaemonSet %s/%s runs on nodes whatever the label %s says", set.Namespace, set.Name, lbhooks.ExcludeLabel)
	}
	return ""
}

// claims says why a kube-vip that is set up like this announces the Service; "" when it does not.
func (c *config) claims(svc *corev1.Service) string {
	class := svc.Spec.LoadBalancerClass
	switch {
	case class != nil && *class != c.class, class == nil && c.classOnly:
		return ""
	case c.namespace != "" && c.namespace != svc.Namespace:
		return ""
	case class != nil:
		return fmt.Sprintf("load balancer class %q", *class)
	}
	return "kube-vip runs for Services of type LoadBalancer"
}

// shows says what shows that a kube-vip whose pods are not at hand announces the Service; "" for nothing.
func (w *world) shows(c *config, svc *corev1.Service) string {
	class := svc.Spec.LoadBalancerClass
	if class != nil {
		if *class == defaultClass {
			return fmt.Sprintf("load balancer class %q", *class)
		}
		return ""
	}
	if _, ok := w.holder[c.leaseOf(svc)]; ok {
		return "there is a Lease " + c.leaseOf(svc).String()
	}
	for key := range svc.Annotations {
		if strings.HasPrefix(key, annotationPrefix) {
			return "annotations of kube-vip"
		}
	}
	return ""
}

// runs says why kube-vip cannot announce from a node; "" when it can.
func (m *match) runs(node string) string {
	n := m.nodes()[node]
	switch pod := m.agents[node]; {
	case n != nil && lbhooks.Virtual(n):
		return "a virtual node"
	case !m.known:
		return ""
	case pod == nil:
		return "no kube-vip on it"
	case !lbhooks.PodReady(pod):
		return "its kube-vip " + pod.Namespace + "/" + pod.Name + " is not Ready"
	}
	return ""
}
