package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/controlplane"
)

var (
	crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	poolsOfLB   = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	l2Adverts   = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "l2advertisements"}
	bgpAdverts  = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "bgpadvertisements"}
	databases   = schema.GroupVersionResource{Group: "test.safedrain.dev", Version: "v1", Resource: "databases"}
)

// customKind is a kind of custom resource by its names alone.
type customKind struct {
	gvr        schema.GroupVersionResource
	kind       string
	namespaced bool
}

// customKinds are MetalLB's, named and scoped as in its own definitions, and one of an operator that runs databases.
var customKinds = []customKind{
	{poolsOfLB, "IPAddressPool", true},
	{l2Adverts, "L2Advertisement", true},
	{bgpAdverts, "BGPAdvertisement", true},
	{schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta2", Resource: "bgppeers"}, "BGPPeer", true},
	{metallb.L2Statuses, "ServiceL2Status", true},
	{metallb.BGPStatuses, "ServiceBGPStatus", true},
	{metallb.NodeStates, "FRRNodeState", false},
	{databases, "Database", true},
}

var (
	definitions     sync.Once
	lastAddress     atomic.Int32
	definitionState error
)

// defineKinds makes the cluster serve the custom kinds, once for all tests.
func (s *scene) defineKinds() {
	s.Helper()
	definitions.Do(func() {
		for _, k := range customKinds {
			if definitionState == nil {
				definitionState = s.define(k)
			}
		}
	})
	if definitionState != nil {
		s.Fatal(definitionState)
	}
}

func (s *scene) define(k customKind) error {
	scope, singular := "Cluster", k.gvr.Resource[:len(k.gvr.Resource)-1]
	if k.namespaced {
		scope = "Namespaced"
	}
	name := k.gvr.Resource + "." + k.gvr.Group
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{}},
		"spec": map[string]any{
			"group": k.gvr.Group, "scope": scope,
			"names": map[string]any{"plural": k.gvr.Resource, "singular": singular, "kind": k.kind, "listKind": k.kind + "List"},
			"versions": []any{map[string]any{
				"name": k.gvr.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}
	ctx := context.Background() // for all tests, whichever is first
	if _, err := s.dynamic.Resource(crdResource).Create(ctx, crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("define %s: %w", name, err)
	}
	return controlplane.Poll(ctx, 2*time.Minute, name+" served", func(ctx context.Context) (bool, string, error) {
		_, err := s.dynamic.Resource(k.gvr).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, "", err
	})
}

// custom makes a custom resource with a spec.
func (s *scene) custom(gvr schema.GroupVersionResource, kind, name string, spec map[string]any) *unstructured.Unstructured {
	s.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gvr.GroupVersion().String(), "kind": kind, "spec": spec}}
	u.SetName(name)
	made, err := s.dynamic.Resource(gvr).Namespace(s.Namespace).Create(s.Context(), u, metav1.CreateOptions{})
	if err != nil {
		s.Fatalf("create %s %s: %v", kind, name, err)
	}
	return made
}

// metalLB installs a MetalLB for the nodes of the scene: its kinds, and a DaemonSet of speakers on the nodes named. Every
// scene behind MetalLB needs one: once any speaker is at hand, a node without one announces nothing.
func (s *scene) metalLB(speakers ...string) {
	s.Helper()
	s.defineKinds()
	for _, name := range speakers {
		s.patchNode(name, `{"metadata":{"labels":{"test.safedrain.dev/speaker":"true"}}}`, "test")
	}
	labels := map[string]string{"app": "metallb", "component": "speaker"}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "speaker"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{controlplane.PoolLabel: s.Namespace, "test.safedrain.dev/speaker": "true"},
				Containers:   []corev1.Container{{Name: "speaker", Image: "example.invalid/speaker", Env: []corev1.EnvVar{{Name: "METALLB_BGP_TYPE", Value: "frr-k8s"}}}},
			},
		},
	}}
	if _, err := s.Client.AppsV1().DaemonSets(s.Namespace).Create(s.Context(), ds, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.PodsReady("metallb", len(speakers))
}

// newAddress returns an address of a balancer that no other Service has: Services that share one are judged together.
func newAddress() string { return fmt.Sprintf("198.18.0.%d", lastAddress.Add(1)) }

// loadBalancer makes a Service of type LoadBalancer for an app with an address of a pool of its own, advertised from the
// nodes of the scene.
func (s *scene) loadBalancer(kind metallbtest.Kind, app string, policy corev1.ServiceExternalTrafficPolicy) *corev1.Service {
	s.Helper()
	address := newAddress()
	pool := s.Namespace + "-" + app
	s.custom(poolsOfLB, "IPAddressPool", pool, map[string]any{"addresses": []any{address + "/32"}})
	spec := map[string]any{
		"ipAddressPools": []any{pool},
		"nodeSelectors":  []any{map[string]any{"matchLabels": map[string]any{controlplane.PoolLabel: s.Namespace}}},
	}
	if kind == metallbtest.L2 {
		s.custom(l2Adverts, "L2Advertisement", pool, spec)
	} else {
		s.custom(bgpAdverts, "BGPAdvertisement", pool, spec)
	}
	svc := s.Service(app, func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, policy
		svc.Annotations = map[string]string{"metallb.io/ip-allocated-from-pool": pool}
	})
	s.ServiceStatus(svc, address)
	svc, err := s.Client.CoreV1().Services(s.Namespace).Get(s.Context(), app, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return svc
}

// lbStep is what MetalLB shows next, and how long after the step before.
type lbStep struct {
	after time.Duration
	state hooktest.State
}

// speakers plays the speakers for one Service and one node: while the node does not bear the exclude label they announce
// from it, and after the label they show the steps. The journal says "showing <app> <state>" a moment before they do.
func (s *scene) speakers(kind metallbtest.Kind, svc *corev1.Service, node, other string, steps ...lbStep) {
	s.Helper()
	b := metallbtest.New(metallbtest.Config{
		Kind: kind, Dynamic: s.dynamic, Kubernetes: s.Client, Other: other, Namespace: s.Namespace,
		Target: lbhooks.Target{Service: svc, Node: s.node(node)},
	})
	if err := b.Show(s.Context(), hooktest.In); err != nil {
		s.Fatal(err)
	}
	s.followStatus(kind, svc.Name)
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.play(ctx, b, svc.Name, node, steps); err != nil && ctx.Err() == nil {
			s.Errorf("speakers of %s: %v", svc.Name, err)
		}
	}()
	s.Cleanup(func() {
		cancel()
		<-done
		_ = s.dynamic.Resource(metallb.NodeStates).Delete(context.Background(), node, metav1.DeleteOptions{}) // only BGP has it
	})
}

// play looks at the label of the node, and shows what it has to.
func (s *scene) play(ctx context.Context, b *metallbtest.Balancer, app, node string, steps []lbStep) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	since, next, out := time.Time{}, 0, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, labelled := n.Labels[lbhooks.ExcludeLabel]
		switch {
		case !labelled && out:
			out, next, err = false, 0, b.Show(ctx, hooktest.In)
		case labelled && !out:
			out, since = true, time.Now()
		case labelled && next < len(steps) && time.Since(since) >= steps[next].after:
			s.journal.begins(fmt.Sprintf("showing %s %s", app, steps[next].state))
			err, since, next = b.Show(ctx, steps[next].state), time.Now(), next+1
		}
		if err != nil {
			return err
		}
	}
}

// followStatus notes in the journal when the statuses of a Service, or what FRR runs, no longer name a node:
// "left <app> <object>", and "named <app> <object>" when one does.
func (s *scene) followStatus(kind metallbtest.Kind, app string) {
	s.Helper()
	selector := metallb.LabelServiceName + "=" + app
	say := func(e watch.EventType, u *unstructured.Unstructured) []string {
		if e == watch.Deleted {
			return []string{"left " + app + " " + u.GetLabels()[metallb.LabelNode]}
		}
		return []string{"named " + app + " " + u.GetLabels()[metallb.LabelNode]}
	}
	resource := metallb.L2Statuses
	if kind == metallbtest.BGP {
		resource = metallb.BGPStatuses
	}
	s.journal.follow(s.dynamic.Resource(resource).Namespace(s.Namespace), selector, say)
}
