// Package calicotest is Calico's route reporting as a test tells it: it writes the CalicoNodeStatus that calico-node would
// write, through a dynamic client, against a double or a real API server that has the CRD.
package calicotest

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/calico"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// Statuses is the resource that the hook reads.
var Statuses = schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "caliconodestatuses"}

// Config is what a Balancer is made of.
type Config struct {
	Writer   dynamic.Interface
	Reader   dynamic.Interface // what the hook reads with
	Target   lbhooks.Target    // the Service has the address 192.0.2.10
	Fail     func(hooktest.Fault)
	Slowness int
}

// Balancer is a scripted calico-node, for one node.
type Balancer struct {
	config Config
	hook   lbhooks.Hook

	mu   sync.Mutex
	last hooktest.State
	at   time.Time // of the last update; moves on by a second with each
}

var _ hooktest.Balancer = (*Balancer)(nil)

// New returns a balancer that shows nothing yet.
func New(c Config) *Balancer {
	return &Balancer{config: c, hook: calico.New(c.Reader, clock.RealClock{}), at: time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC)}
}

// Hook returns the hook.
func (b *Balancer) Hook() lbhooks.Hook { return b.hook }

// Target is the Service and the node.
func (b *Balancer) Target() lbhooks.Target { return b.config.Target }

// Fail makes the hook's reads fail.
func (b *Balancer) Fail(f hooktest.Fault) { b.config.Fail(f) }

// Traits of Calico: every node stands alone.
func (b *Balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: b.config.Slowness,
		States: []hooktest.State{hooktest.Moving, hooktest.Lying},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.NotServed, hooktest.Slow},
	}
}

// Show writes a state. In: the node originates the address. Moving: the address is gone, but not yet the range that it is
// in. Lying: no route of its own, but in a status that is never updated. Out: only routes learned from others are left.
func (b *Balancer) Show(ctx context.Context, s hooktest.State) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.show(ctx, s)
}

func (b *Balancer) show(ctx context.Context, s hooktest.State) error {
	b.last, b.at = s, b.at.Add(time.Second)
	own, learned := route("192.0.2.10/32", "Static"), route("192.0.2.10/32", "NodeMesh")
	period := int64(10)
	routes := map[hooktest.State][]any{
		hooktest.In: {own, learned}, hooktest.Moving: {route("192.0.2.0/24", "Static"), learned}, hooktest.Lying: {}, hooktest.Out: {learned},
	}[s]
	if s == hooktest.Lying {
		period = 0
	}
	return b.write(ctx, period, routes)
}

// Report writes the last state anew from time to time, as calico-node does, until the context ends.
func (b *Balancer) Report(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		b.mu.Lock()
		_ = b.show(ctx, b.last) // the next one will do
		b.mu.Unlock()
	}
}

func (b *Balancer) write(ctx context.Context, period int64, routes []any) error {
	name := b.config.Target.Node.Name
	want := hooktest.Custom("crd.projectcalico.org/v1", "CalicoNodeStatus", name,
		map[string]any{"node": name, "classes": []any{"Agent", "BGP", "Routes"}, "updatePeriodSeconds": period},
		map[string]any{"lastUpdated": b.at.Format(time.RFC3339), "routes": map[string]any{"routesV4": routes}})
	if err := hooktest.Apply(ctx, b.config.Writer, Statuses, want); err != nil {
		return err
	}
	return b.respec(ctx, want)
}

// respec brings the spec up to date, whose period differs between the states.
func (b *Balancer) respec(ctx context.Context, want *unstructured.Unstructured) error {
	resource := b.config.Writer.Resource(Statuses)
	have, err := resource.Get(ctx, want.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	have.Object["spec"] = want.Object["spec"]
	_, err = resource.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

func route(destination, source string) map[string]any {
	return map[string]any{"type": "RIB", "destination": destination, "learnedFrom": map[string]any{"sourceType": source}}
}
