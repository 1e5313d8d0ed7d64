// Package kubeviptest is a kube-vip that does what a test tells it: it writes the Leases, pods, endpoints and node labels
// that kube-vip and the cluster around it would write, through a client of a double or of a real API server.
package kubeviptest

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip"
)

// Kind is how kube-vip is set up.
type Kind string

// The kinds of election: one Lease a Service, one for all Services, none.
const (
	PerService Kind = "service"
	Global     Kind = "global"
	BGP        Kind = "bgp"
)

// Config is what a Balancer is made of.
type Config struct {
	Kind      Kind
	Writer    kubernetes.Interface
	Reader    kubernetes.Interface // what the hook reads with; nil: Writer
	Target    lbhooks.Target       // the Service is of type LoadBalancer
	Nodes     []*corev1.Node       // the target's and two others: the second takes over, the third has no endpoint
	Namespace string               // kube-vip's; it must exist
	Clock     clock.PassiveClock   // nil: the real one
	Fail      func(hooktest.Fault)
	Slowness  int
}

// Balancer is a scripted kube-vip, for one Service.
type Balancer struct {
	config Config
	hook   *kubevip.Hook
}

var _ hooktest.Balancer = (*Balancer)(nil)

// New returns a balancer whose hook has matched the Service, so that it knows how kube-vip is set up.
func New(c Config) (*Balancer, error) {
	if c.Reader == nil {
		c.Reader = c.Writer
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	b := &Balancer{config: c, hook: kubevip.New(c.Reader, c.Clock)}
	objects := &hooktest.Objects{AllNodes: c.Nodes, Pods: map[string][]*corev1.Pod{}}
	for _, n := range c.Nodes {
		objects.Pods[kubevip.Name] = append(objects.Pods[kubevip.Name], Agent(c.Kind, c.Namespace, n.Name))
	}
	if _, ok := b.hook.Match(c.Target.Service, objects); !ok {
		return nil, fmt.Errorf("kube-vip does not match Service %s", c.Target.Service.Name)
	}
	return b, nil
}

// Agent is the pod of kube-vip on a node, as its DaemonSet of that kind makes it.
func Agent(kind Kind, namespace, node string) *corev1.Pod {
	variables := map[Kind][]corev1.EnvVar{
		PerService: {{Name: "vip_arp", Value: "true"}, {Name: "svc_election", Value: "true"}, {Name: "enable_node_labeling", Value: "true"}},
		Global:     {{Name: "vip_arp", Value: "true"}, {Name: "svc_leasename", Value: "plndr-svcs-lock"}},
		BGP:        {{Name: "bgp_enable", Value: "true"}},
	}
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "kube-vip-ds-" + node, Labels: map[string]string{"app.kubernetes.io/name": "kube-vip-ds"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "kube-vip-ds", UID: "1", Controller: &yes}},
	}}
	pod.Spec.NodeName = node
	pod.Spec.HostNetwork = true
	pod.Spec.Containers = []corev1.Container{{
		Name: "kube-vip", Image: "kube-vip", Args: []string{"manager"},
		Env: append([]corev1.EnvVar{{Name: "svc_enable", Value: "true"}}, variables[kind]...),
	}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return pod
}

// Hook returns the hook.
func (b *Balancer) Hook() lbhooks.Hook { return b.hook }

// Target is the Service and the node.
func (b *Balancer) Target() lbhooks.Target { return b.config.Target }

// Fail makes the hook's reads fail.
func (b *Balancer) Fail(f hooktest.Fault) { b.config.Fail(f) }

// Traits of kube-vip. By BGP every node stands alone, and the end of its kube-vip is all there is to see.
func (b *Balancer) Traits() hooktest.Traits {
	t := hooktest.Traits{
		Witness: true, By: b.config.Nodes[1].Name, Slowness: b.config.Slowness,
		States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.Slow},
	}
	if b.config.Kind == BGP {
		t.By, t.States, t.Out = "", []hooktest.State{hooktest.Nobody}, []hooktest.State{hooktest.Nobody}
	}
	return t
}

// Show writes a state. In: kube-vip on the node, which holds the Lease. Moving: its kube-vip has ended, the Lease is
// released. Out: the second node holds it. Lying: it does, and the first is still labelled as having the address, or, with
// one Lease for all, runs kube-vip again. Nobody: the third node holds it, which has no endpoint.
func (b *Balancer) Show(ctx context.Context, s hooktest.State) error {
	node, other, empty := b.config.Nodes[0].Name, b.config.Nodes[1].Name, b.config.Nodes[2].Name
	runs := s == hooktest.In || s == hooktest.Lying && b.config.Kind != PerService
	if err := b.endpoints(ctx, node, other); err != nil {
		return err
	}
	if err := b.agent(ctx, runs); err != nil {
		return err
	}
	if b.config.Kind == BGP {
		return nil
	}
	if err := b.labelled(ctx, s == hooktest.In || s == hooktest.Lying); err != nil {
		return err
	}
	return b.Hold(ctx, map[hooktest.State]string{
		hooktest.In: node, hooktest.Moving: "", hooktest.Out: other, hooktest.Lying: other, hooktest.Nobody: empty,
	}[s], b.config.Clock.Now())
}

// Hold writes the Lease: who holds it, and since when it is renewed.
func (b *Balancer) Hold(ctx context.Context, holder string, renewed time.Time) error {
	name, namespace := "kubevip-"+b.config.Target.Service.Name, b.config.Target.Service.Namespace
	if b.config.Kind == Global {
		name, namespace = "plndr-svcs-lock", b.config.Namespace
	}
	leases := b.config.Writer.CoordinationV1().Leases(namespace)
	seconds, at := int32(15), metav1.NewMicroTime(renewed)
	want := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	want.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at}
	if _, err := leases.Create(ctx, want, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	have.Spec = want.Spec
	_, err = leases.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// agent makes kube-vip run on the node, or not.
func (b *Balancer) agent(ctx context.Context, runs bool) error {
	pods := b.config.Writer.CoreV1().Pods(b.config.Namespace)
	pod := Agent(b.config.Kind, b.config.Namespace, b.config.Nodes[0].Name)
	if !runs {
		now := int64(0)
		if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// endpoints gives nodes a serving endpoint each.
func (b *Balancer) endpoints(ctx context.Context, nodes ...string) error {
	yes, svc := true, b.config.Target.Service
	slice := hooktest.Slice(svc, discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}, nodes...)
	slice.AddressType = discoveryv1.AddressTypeIPv4
	for i := range slice.Endpoints {
		slice.Endpoints[i].Addresses = []string{fmt.Sprintf("192.0.2.%d", 100+i)}
	}
	_, err := b.config.Writer.DiscoveryV1().EndpointSlices(svc.Namespace).Create(ctx, slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// labelled labels the node as kube-vip does the one that has the address.
func (b *Balancer) labelled(ctx context.Context, has bool) error {
	nodes := b.config.Writer.CoreV1().Nodes()
	node, err := nodes.Get(ctx, b.config.Nodes[0].Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	key := "service-provided.kube-vip.io/" + b.config.Target.Service.Name + "." + b.config.Target.Service.Namespace
	if _, is := node.Labels[key]; is == has {
		return nil
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if delete(node.Labels, key); has {
		node.Labels[key] = "192.0.2.10"
	}
	_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	return err
}
