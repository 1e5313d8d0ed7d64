// Package metallbtest is a MetalLB that does what a test tells it: it writes the status objects that speakers would write,
// through a dynamic client, against a double or a real API server that has the CRDs.
package metallbtest

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
)

// Kind is how the Service is announced.
type Kind string

// The kinds of announcement. Both: by L2 and by BGP, which is metallb-bgp's.
const (
	L2   Kind = "l2"
	BGP  Kind = "bgp"
	Both Kind = "both"
)

// Config is what a Balancer is made of.
type Config struct {
	Kind       Kind
	Dynamic    dynamic.Interface
	Reader     dynamic.Interface    // what the hook reads with, where that is somebody else than who writes; nil: Dynamic
	Kubernetes kubernetes.Interface // for the state of speakers; may be nil
	Target     lbhooks.Target       // the Service needs an address in its status
	Other      string               // the node that takes over
	Namespace  string               // MetalLB's, "metallb-system" by default; it must exist
	NoFRR      bool                 // without FRRNodeState
}

// Balancer is a scripted MetalLB, for one Service.
type Balancer struct {
	config Config
	faults *Faulty
	hook   lbhooks.Hook
}

var _ hooktest.Balancer = (*Balancer)(nil)

// New returns a balancer that shows nothing yet.
func New(c Config) *Balancer {
	if c.Namespace == "" {
		c.Namespace = "metallb-system"
	}
	if c.Reader == nil {
		c.Reader = c.Dynamic
	}
	b := &Balancer{config: c, faults: NewFaulty(c.Reader)}
	if c.Kind == L2 {
		b.hook = metallb.NewL2(c.Kubernetes, b.faults)
	} else {
		b.hook = metallb.NewBGP(c.Kubernetes, b.faults)
	}
	return b
}

// Hook returns the hook, which reads through the faults.
func (b *Balancer) Hook() lbhooks.Hook { return b.hook }

// Target is the Service and the node.
func (b *Balancer) Target() lbhooks.Target { return b.config.Target }

// Fail makes the hook's reads fail; what the balancer writes always arrives.
func (b *Balancer) Fail(f hooktest.Fault) { b.faults.Set(f) }

// Traits of MetalLB. By BGP every node stands alone, so that nobody else announces does not put a node back in.
func (b *Balancer) Traits() hooktest.Traits {
	t := hooktest.Traits{
		Witness: true,
		States:  []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults:  []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.NotServed, hooktest.Slow},
	}
	if b.config.Kind == L2 {
		t.By = b.config.Other
		return t
	}
	t.Out = []hooktest.State{hooktest.Nobody}
	if b.config.NoFRR && b.config.Kind == BGP {
		t.States = []hooktest.State{hooktest.Nobody}
	}
	return t
}

// shown is what the objects say in one state: the nodes of each kind of status, a status whose label alone names the node,
// and whether the node's FRR runs the prefix.
type shown struct {
	l2, bgp   []string
	labelOnly bool
	prefix    bool
}

func (b *Balancer) shown(s hooktest.State) shown {
	node, other := b.config.Target.Node.Name, b.config.Other
	byState := map[hooktest.State]shown{
		hooktest.In:     {l2: []string{node}, bgp: []string{node, other}, prefix: true},
		hooktest.Moving: {l2: []string{node, other}, bgp: []string{node, other}},
		hooktest.Out:    {l2: []string{other}, bgp: []string{other}},
		hooktest.Lying:  {l2: []string{other}, bgp: []string{other}, labelOnly: true, prefix: true},
		hooktest.Nobody: {},
	}
	v := byState[s]
	switch b.config.Kind {
	case L2:
		v.bgp, v.prefix = nil, false
	case BGP:
		v.l2, v.labelOnly = nil, false
	case Both:
		// The BGP side is out in every state but In: what is left to see is the L2 side.
		if s != hooktest.In {
			v.bgp, v.prefix = []string{other}, false
		}
	}
	return v
}

// Show writes the objects of a state. New ones come before old ones go, as MetalLB does it.
func (b *Balancer) Show(ctx context.Context, s hooktest.State) error {
	v := b.shown(s)
	if b.config.Kind != L2 && !b.config.NoFRR {
		if err := b.apply(ctx, metallb.NodeStates, b.nodeState(v.prefix)); err != nil {
			return err
		}
	}
	var l2, bgp []*unstructured.Unstructured
	for _, node := range v.l2 {
		l2 = append(l2, b.status("ServiceL2Status", "l2-"+node, node, node))
	}
	if v.labelOnly {
		l2 = append(l2, b.status("ServiceL2Status", "l2-new", b.config.Target.Node.Name, ""))
	}
	for _, node := range v.bgp {
		u := b.status("ServiceBGPStatus", "bgp-"+node, node, node)
		_ = unstructured.SetNestedStringSlice(u.Object, []string{"tor"}, "status", "peers") // a plain map takes it
		bgp = append(bgp, u)
	}
	if b.config.Kind != BGP {
		if err := b.replace(ctx, metallb.L2Statuses, l2); err != nil {
			return err
		}
	}
	if b.config.Kind == L2 {
		return nil
	}
	return b.replace(ctx, metallb.BGPStatuses, bgp)
}

func (b *Balancer) labels() labels.Set {
	svc := b.config.Target.Service
	return labels.Set{metallb.LabelServiceName: svc.Name, metallb.LabelServiceNamespace: svc.Namespace}
}

// status is one status object; node "" leaves its status empty, as it is for a moment after its creation.
func (b *Balancer) status(kind, name, label, node string) *unstructured.Unstructured {
	svc := b.config.Target.Service
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "metallb.io/v1beta1", "kind": kind, "spec": map[string]any{}}}
	u.SetNamespace(b.config.Namespace)
	u.SetName(name + "-" + svc.Name)
	set := b.labels()
	set[metallb.LabelNode] = label
	u.SetLabels(set)
	if node != "" {
		u.Object["status"] = map[string]any{"node": node, "serviceName": svc.Name, "serviceNamespace": svc.Namespace}
	}
	return u
}

// nodeState is the FRRNodeState of the node.
func (b *Balancer) nodeState(prefix bool) *unstructured.Unstructured {
	text := "router bgp 64512\n neighbor 192.0.2.254 remote-as 64513\n address-family ipv4 unicast\n"
	if prefix {
		text += "  network " + address(b.config.Target.Service) + "\n"
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "frrk8s.metallb.io/v1beta1", "kind": "FRRNodeState",
		"status": map[string]any{"runningConfig": text + " exit-address-family\nexit\n", "lastReloadResult": "success", "lastConversionResult": "success"},
	}}
	u.SetName(b.config.Target.Node.Name)
	return u
}

func address(svc *corev1.Service) string {
	for _, a := range lbhooks.Addresses(svc) {
		return fmt.Sprintf("%s/%d", a, a.BitLen())
	}
	return ""
}

// replace makes these the only status objects of the Service.
func (b *Balancer) replace(ctx context.Context, kind schema.GroupVersionResource, want []*unstructured.Unstructured) error {
	keep := map[string]bool{}
	for _, u := range want {
		keep[u.GetName()] = true
		if err := b.apply(ctx, kind, u); err != nil {
			return err
		}
	}
	client := b.config.Dynamic.Resource(kind).Namespace(b.config.Namespace)
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: b.labels().String()})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if name := list.Items[i].GetName(); !keep[name] {
			if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}
