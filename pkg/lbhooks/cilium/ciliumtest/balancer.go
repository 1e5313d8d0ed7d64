// Package ciliumtest is Cilium's BGP control plane as a test tells it: it writes the CiliumBGPNodeConfigs that its
// operator and agents would write, through a dynamic client, against a double or a real API server that has the CRDs.
package ciliumtest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/cilium"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// Resources that the hook reads while it proves.
var (
	NodeConfigs = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumbgpnodeconfigs"}
	PeerConfigs = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumbgppeerconfigs"}
)

// Config is what a Balancer is made of.
type Config struct {
	Writer   dynamic.Interface
	Reader   dynamic.Interface // what the hook reads with
	Target   lbhooks.Target
	Other    string // a node that keeps its sessions
	Fail     func(hooktest.Fault)
	Slowness int
}

// Balancer is a scripted BGP control plane.
type Balancer struct {
	config Config
	hook   lbhooks.Hook
}

var _ hooktest.Balancer = (*Balancer)(nil)

// New returns a balancer that shows nothing yet.
func New(c Config) *Balancer { return &Balancer{config: c, hook: cilium.NewBGP(c.Reader)} }

// Hook returns the hook.
func (b *Balancer) Hook() lbhooks.Hook { return b.hook }

// Target is the Service and the node.
func (b *Balancer) Target() lbhooks.Target { return b.config.Target }

// Fail makes the hook's reads fail.
func (b *Balancer) Fail(f hooktest.Fault) { b.config.Fail(f) }

// Traits of Cilium: every node stands alone, so that nobody else has a session does not put a node back in.
func (b *Balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: b.config.Slowness,
		States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Out:    []hooktest.State{hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.NotServed, hooktest.Slow},
	}
}

// Show writes a state. In: sessions established. Moving: down, but configured, so they may come back. Lying: established,
// and no route is said to be advertised over them. Out: the node has no configuration any more. Nobody: nor has another.
func (b *Balancer) Show(ctx context.Context, s hooktest.State) error {
	own, other := b.config.Target.Node.Name, b.config.Other
	switch s {
	case hooktest.In:
		return b.apply(ctx, map[string][2]any{own: {"established", int64(3)}, other: {"established", int64(3)}})
	case hooktest.Moving:
		return b.apply(ctx, map[string][2]any{own: {"idle", int64(0)}, other: {"established", int64(3)}})
	case hooktest.Lying:
		return b.apply(ctx, map[string][2]any{own: {"established", int64(0)}, other: {"established", int64(3)}})
	case hooktest.Out:
		return b.apply(ctx, map[string][2]any{other: {"established", int64(3)}})
	}
	return b.apply(ctx, nil)
}

// apply makes these the only configurations of the two nodes: the state of their session, and the routes advertised.
func (b *Balancer) apply(ctx context.Context, want map[string][2]any) error {
	for _, node := range []string{b.config.Target.Node.Name, b.config.Other} {
		session, ok := want[node]
		if !ok {
			if err := b.config.Writer.Resource(NodeConfigs).Delete(ctx, node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			continue
		}
		config := hooktest.Custom("cilium.io/v2", "CiliumBGPNodeConfig", node,
			map[string]any{"bgpInstances": []any{map[string]any{"name": "instance-65000"}}},
			map[string]any{"bgpInstances": []any{map[string]any{"name": "instance-65000", "peers": []any{map[string]any{
				"name": "tor", "peerAddress": "192.0.2.254", "peeringState": session[0],
				"routeCount": []any{map[string]any{"afi": "ipv4", "safi": "unicast", "advertised": session[1]}},
			}}}}})
		if err := hooktest.Apply(ctx, b.config.Writer, NodeConfigs, config); err != nil {
			return err
		}
	}
	return nil
}
