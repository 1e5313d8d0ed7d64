package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ask is one question of a table: a pod in a small cluster, and for every node the reason against it, "" for none.
type ask struct {
	why     string // what the row teaches
	nodes   []*corev1.Node
	spaces  map[string]map[string]string
	volumes *Volumes
	there   []*corev1.Pod
	pod     *corev1.Pod
	want    map[string]string
}

// run asks every question of a table.
func run(t *testing.T, table map[string]ask) {
	t.Helper()
	for name, a := range table {
		t.Run(name, func(t *testing.T) {
			s := New(a.cluster())
			if d := cmp.Diff(a.want, answers(s.Candidates(a.pod))); d != "" {
				t.Errorf("%s (-want +got):\n%s", a.why, d)
			}
		})
	}
}

func (a *ask) cluster() *Cluster {
	c := &Cluster{Namespaces: a.spaces, Volumes: a.volumes}
	if c.Volumes == nil {
		c.Volumes = &Volumes{}
	}
	for _, n := range a.nodes {
		c.Nodes = append(c.Nodes, Node{Object: n, Whole: true})
	}
	for _, p := range a.there {
		if Counts(p) {
			c.Pods = append(c.Pods, OccupantOf(p))
		}
	}
	return c
}

// answers is an answer by node: the reason against it, "" for none, "unread" where the pods of the node are not at hand.
func answers(a Answer) map[string]string {
	if a.Unknown != "" {
		return map[string]string{"unknown": a.Unknown}
	}
	out := map[string]string{}
	for _, n := range a.Nodes {
		out[n] = ""
	}
	for _, n := range a.Unread {
		out[n] = "unread"
	}
	for _, r := range a.Refused {
		out[r.Node] = r.Reason
	}
	return out
}

type nodeOption func(*corev1.Node)

// aNode has 4 processors, 8Gi, room for 10 pods, and its name as host label.
func aNode(name string, options ...nodeOption) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status:     corev1.NodeStatus{Allocatable: list("cpu=4,memory=8Gi,pods=10,ephemeral-storage=10Gi")},
	}
	for _, o := range options {
		o(n)
	}
	return n
}

func inZone(zone string) nodeOption { return labelled(corev1.LabelTopologyZone, zone) }

func labelled(key, value string) nodeOption {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func tainted(key, value string, effect corev1.TaintEffect) nodeOption {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func cordon(n *corev1.Node) { n.Spec.Unschedulable = true }

func offers(amounts string) nodeOption {
	return func(n *corev1.Node) {
		for k, v := range list(amounts) {
			n.Status.Allocatable[k] = v
		}
	}
}

type podOption func(*corev1.Pod)

// aPod is "namespace/name", or "name" in namespace shop; its label app is the name up to the dash.
func aPod(name string, options ...podOption) *corev1.Pod {
	namespace, short, ok := strings.Cut(name, "/")
	if !ok {
		namespace, short = "shop", name
	}
	app, _, _ := strings.Cut(short, "-")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short, UID: types.UID(namespace + "." + short), Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func on(node string) podOption { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func ownedBy(uid types.UID) podOption {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: string(uid), UID: uid, Controller: &yes}}
	}
}

func requests(amounts string) podOption {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list(amounts) }
}

func hostPort(ip string, port int32, protocol corev1.Protocol) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{HostIP: ip, HostPort: port, Protocol: protocol})
	}
}

func tolerates(t corev1.Toleration) podOption {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

func selects(key, value string) podOption {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

// far and near require anti-affinity and affinity to pods of an app.
func far(key, app string, more ...func(*corev1.PodAffinityTerm)) podOption {
	return func(p *corev1.Pod) {
		a := affinities(p)
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{aTerm(key, app, more)}}
	}
}

func near(key, app string, more ...func(*corev1.PodAffinityTerm)) podOption {
	return func(p *corev1.Pod) {
		a := affinities(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		terms := &a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		*terms = append(*terms, aTerm(key, app, more))
	}
}

func affinities(p *corev1.Pod) *corev1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	return p.Spec.Affinity
}

func aTerm(key, app string, more []func(*corev1.PodAffinityTerm)) corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: ofApp(app)}
	for _, m := range more {
		m(&t)
	}
	return t
}

func ofApp(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// list reads "cpu=500m,memory=1Gi".
func list(amounts string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for part := range strings.SplitSeq(amounts, ",") {
		name, amount, ok := strings.Cut(part, "=")
		if !ok {
			panic(fmt.Sprintf("amount %q", part))
		}
		out[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return out
}
