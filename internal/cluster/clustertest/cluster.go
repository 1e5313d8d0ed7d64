// Package clustertest makes clusters of any size for tests and benchmarks.
package clustertest

import (
	"encoding/json"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// perSlice is the most endpoints that Kubernetes puts in one slice.
const perSlice = 100

// Cluster holds the objects of a generated cluster.
type Cluster struct {
	Nodes    []*corev1.Node
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	Pods     []*corev1.Pod
	Budgets  []*policyv1.PodDisruptionBudget
}

// Large generates nodes n0, n1, … and NodePort Services s0, s1, … in 100 namespaces, three of ten of them Local. Every
// fiftieth Service has one endpoint, all others have 20; endpoint j of Service i sits on node (7i + 13j) mod nodes.
// Pods are made for podsOn nodes, the first ones.
func Large(nodes, services, podsOn int) *Cluster {
	c := &Cluster{}
	for i := range nodes {
		c.Nodes = append(c.Nodes, node(i))
	}
	for i := range services {
		c.addService(i, nodes, podsOn)
	}
	return c
}

// AddBudgets adds n PodDisruptionBudgets over the Services' pods, which allow one disruption each.
func (c *Cluster) AddBudgets(n int) {
	for i := range n {
		one := intstr.FromInt32(1)
		app := fmt.Sprintf("s%d", i)
		c.Budgets = append(c.Budgets, &policyv1.PodDisruptionBudget{
			ObjectMeta: meta(namespace(i), app),
			Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 20, DesiredHealthy: 19, ExpectedPods: 20},
		})
	}
}

func namespace(i int) string { return fmt.Sprintf("ns%d", i%100) }

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%-36.36s", namespace+"."+name)), ResourceVersion: "1",
	}
}

func node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: meta("", fmt.Sprintf("n%d", i))}
	n.Labels = map[string]string{
		"kubernetes.io/hostname": n.Name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
		"topology.kubernetes.io/zone": fmt.Sprintf("z%d", i%3), "node.kubernetes.io/instance-type": "m5.large",
	}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.%d.%d.1", i/256, i%256)},
		{Type: corev1.NodeHostName, Address: n.Name},
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse})
	}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"})
	return n
}

func (c *Cluster) addService(i, nodes, podsOn int) {
	name := fmt.Sprintf("s%d", i)
	svc := &corev1.Service{ObjectMeta: meta(namespace(i), name)}
	ip := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
	svc.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		Ports:                 []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, NodePort: int32(30000 + i%2768)}},
		Selector:              map[string]string{"app": name},
	}
	if i%10 < 3 {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	c.Services = append(c.Services, svc)
	endpoints := 20
	if i%50 == 0 {
		endpoints = 1
	}
	var slice *discoveryv1.EndpointSlice
	for j := range endpoints {
		if j%perSlice == 0 {
			slice = newSlice(svc, j/perSlice)
			c.Slices = append(c.Slices, slice)
		}
		at := (7*i + 13*j) % nodes
		pod := pod(svc, i, j, at)
		slice.Endpoints = append(slice.Endpoints, endpoint(pod))
		if at < podsOn {
			c.Pods = append(c.Pods, pod)
		}
	}
}

func newSlice(svc *corev1.Service, n int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(svc.Namespace, fmt.Sprintf("%s-%d", svc.Name, n)), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{
		discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
	}
	name, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}}
	return s
}

func pod(svc *corev1.Service, i, j, at int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(svc.Namespace, fmt.Sprintf("s%d-%d", i, j))}
	p.Labels = map[string]string{"app": svc.Name}
	controller := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: svc.Name, UID: types.UID("rs-" + svc.Name), Controller: &controller}}
	p.Spec.NodeName = fmt.Sprintf("n%d", at)
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "example/app:1", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.%d.%d.%d", 128+i/256, i%256, j+2),
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	return p
}

func endpoint(p *corev1.Pod) discoveryv1.Endpoint {
	yes, no, node := true, false, p.Spec.NodeName
	return discoveryv1.Endpoint{
		Addresses: []string{p.Status.PodIP}, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
	}
}

// Objects returns all objects, with their kinds set.
func (c *Cluster) Objects() []runtime.Object {
	var out []runtime.Object
	for _, o := range c.Nodes {
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		out = append(out, o)
	}
	for _, o := range c.Services {
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
		out = append(out, o)
	}
	for _, o := range c.Slices {
		o.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
		out = append(out, o)
	}
	for _, o := range c.Pods {
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		out = append(out, o)
	}
	for _, o := range c.Budgets {
		o.SetGroupVersionKind(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"))
		out = append(out, o)
	}
	return out
}

// WriteJSON writes all objects as one List, as kubectl get -o json does.
func (c *Cluster) WriteJSON(w io.Writer) error {
	return json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": c.Objects()})
}
