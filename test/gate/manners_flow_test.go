package gate

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/gate/manners"
	"github.com/safedrain/safedrain/internal/gate/withdraw"
	"github.com/safedrain/safedrain/test/controlplane"
)

func mannerTimes() manners.Options {
	return manners.Options{Settle: 50 * time.Millisecond, Resync: time.Second, Retry: 100 * time.Millisecond, Workers: 2}
}

// autoscaler makes the cluster one with a cluster-autoscaler, as its status shows.
func (s *small) autoscaler() {
	s.Helper()
	system := manners.StatusConfigMap.Namespace
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}
	if _, err := s.Client.CoreV1().Namespaces().Create(s.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
	status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: manners.StatusConfigMap.Name}}
	if _, err := s.Client.CoreV1().ConfigMaps(system).Create(s.Context(), status, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
}

// The deletion of a machine waits from before its scale-down begins until its node is out and its pods are gone.
func TestMannersDelayTheDeletionOfMachines(t *testing.T) {
	s := newSmall(t, 3)
	a := s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	s.autoscaler()
	s.run(&manners.Autoscaler{Client: s.client(), Store: s.store, Log: quiet(), Clock: wall, Options: mannerTimes()})
	delayed := func(yes bool) func(*corev1.Node, *claim.Claim) bool {
		return func(n *corev1.Node, _ *claim.Claim) bool {
			_, ok := n.Annotations[manners.AnnotationDelay]
			return ok == yes
		}
	}
	s.until("delay", s.nodes[0], delayed(true))
	s.until("delay", s.nodes[1], delayed(true))
	s.until("no delay without endpoints", s.nodes[2], delayed(false))
	at := len(s.writes.all())
	pause(2 * time.Second)
	if got := s.writes.all()[at:]; len(got) > 0 {
		t.Errorf("writes in a cluster at rest: %v", got)
	}

	// The scale-down: tainted, the pod gone before anything is proven. The machine waits on.
	s.balancer.jam(true)
	s.run(s.withdrawals())
	s.patchNode(s.nodes[0], autoscalersTaint)
	s.until("withdrawn", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return c != nil && c.Phase == claim.Withdrawn })
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(t.Context(), a.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	s.EndpointsReady("web", 1)
	pause(2 * time.Second)
	s.until("delay until it is proven", s.nodes[0], delayed(true))
	s.balancer.jam(false)
	s.until("no delay", s.nodes[0], delayed(false))
	if c, _ := claim.Of(s.node(s.nodes[0])); !released(c, s.Namespace+"/web") {
		t.Errorf("the machine may go before its node is out: %v", c)
	}
}

var (
	machines    = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	machineKind sync.Once
)

// machineDefinition is a kind like Cluster API's Machines, of any form.
func machineDefinition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "machines.cluster.x-k8s.io", "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a test"}},
		"spec": map[string]any{
			"group": machines.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "machines", "singular": "machine", "kind": "Machine", "listKind": "MachineList"},
			"versions": []any{map[string]any{
				"name": machines.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}
}

// serveMachines makes the cluster one with Cluster API's Machines.
func (s *small) serveMachines() {
	s.Helper()
	machineKind.Do(func() {
		crd := machineDefinition()
		if _, err := s.dynamic().Resource(definitions).Create(context.Background(), crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			s.Fatal(err)
		}
	})
	s.Wait("machines served", func(ctx context.Context) (bool, string, error) {
		_, err := s.dynamic().Resource(machines).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, fmt.Sprint(err), nil
	})
}

// machine makes the Machine of a node, held by a finalizer as Cluster API holds it.
func (s *small) machine(name, node, provider string) {
	s.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": machines.GroupVersion().String(), "kind": "Machine",
		"metadata": map[string]any{"name": name, "finalizers": []any{"test.safedrain.dev/machine"}},
		"spec":     map[string]any{"providerID": provider},
	}}
	made, err := s.dynamic().Resource(machines).Namespace(s.Namespace).Create(s.Context(), u, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	made.Object["status"] = map[string]any{"nodeRef": map[string]any{"name": node}}
	if _, err := s.dynamic().Resource(machines).Namespace(s.Namespace).UpdateStatus(s.Context(), made, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		patch := []byte(`{"metadata":{"finalizers":null}}`)
		ctx := context.Background()
		_, _ = s.dynamic().Resource(machines).Namespace(s.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		_ = s.dynamic().Resource(machines).Namespace(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// hooked waits until a Machine has the hook, or has it not.
func (s *small) hooked(name string, yes bool) {
	s.Helper()
	s.Wait(fmt.Sprintf("hook on machine %s: %v", name, yes), func(ctx context.Context) (bool, string, error) {
		u, err := s.dynamic().Resource(machines).Namespace(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		_, ok := u.GetAnnotations()[manners.AnnotationPreDrain]
		return ok == yes, fmt.Sprint(u.GetAnnotations(), s.events.all()), nil
	})
}

// A Machine of Cluster API that is deleted is not drained before its node has left rotation. One of another cluster, whose
// node bears the same name, is none of ours.
func TestMannersHoldBackTheDrainOfMachines(t *testing.T) {
	s := newSmall(t, 3, func(n *corev1.Node) {
		n.Spec.ProviderID = "test://" + n.Name
		n.Annotations = map[string]string{
			"cluster.x-k8s.io/machine":           "m-" + n.Name[len(n.Name)-1:],
			"cluster.x-k8s.io/cluster-namespace": n.Labels[controlplane.PoolLabel],
		}
	})
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	s.serveMachines()
	s.machine("m-1", s.nodes[0], "test://"+s.nodes[0])
	s.machine("m-3", s.nodes[2], "test://"+s.nodes[2])
	s.machine("elsewhere", s.nodes[0], "test://another")
	m := &manners.Machines{Client: s.client(), Dynamic: s.dynamic(), Store: s.store, Log: quiet(), Clock: wall, Options: mannerTimes()}
	c := s.withdrawals(func(c *withdraw.Controller) { c.Machines = m })
	m.Changed = c.Node
	s.balancer.jam(true)
	s.run(m)
	s.run(c)
	s.hooked("m-1", true)
	s.hooked("m-3", false)
	s.hooked("elsewhere", false)
	if err := s.dynamic().Resource(machines).Namespace(s.Namespace).Delete(t.Context(), "m-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until("withdrawn", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return c != nil && c.Phase == claim.Withdrawn })
	pause(time.Second)
	s.hooked("m-1", true)
	s.balancer.jam(false)
	s.hooked("m-1", false)
	if c, _ := claim.Of(s.node(s.nodes[0])); !released(c, s.Namespace+"/web") {
		t.Errorf("the drain may begin before the node is out: %v", c)
	}
	s.wantEvents("WithdrawStarted: Cluster API empties it")
}
