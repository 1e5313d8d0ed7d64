package hooks

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/customkinds"
)

// metalLB is a MetalLB whose statuses are real objects, and whose hook reads them as a user of its own.
type metalLB struct {
	*metallbtest.Balancer

	reader *reader
}

func (b *metalLB) Fail(f hooktest.Fault) { b.reader.Fail(f) }

func (b *metalLB) Traits() hooktest.Traits {
	t := b.Balancer.Traits()
	t.Slowness = slowness
	return t
}

func newMetalLB(t *testing.T, kind metallbtest.Kind, noFRR bool) *metalLB {
	t.Helper()
	define(t)
	s := newScene(t)
	status := customkinds.Kind{GroupVersionResource: metallb.L2Statuses, Name: "ServiceL2Status", Namespaced: true}
	needs := metallb.NewL2(nil, nil).Describe().Needs
	if kind != metallbtest.L2 {
		status = customkinds.Kind{GroupVersionResource: metallb.BGPStatuses, Name: "ServiceBGPStatus", Namespaced: true}
		needs = metallb.NewBGP(nil, nil).Describe().Needs
	}
	b := &metalLB{reader: newReader(t, s.Env, needs, status)}
	b.Balancer = metallbtest.New(metallbtest.Config{
		Kind: kind, Dynamic: admin, Reader: b.reader.dynamic, Kubernetes: b.reader.kubernetes,
		Target: s.target(), Other: s.nodes[1].Name, Namespace: s.Namespace, NoFRR: noFRR,
	})
	t.Cleanup(func() {
		// It is there for BGP only, and its kind may be gone by now.
		_ = admin.Resource(metallb.NodeStates).Delete(context.Background(), s.nodes[0].Name, metav1.DeleteOptions{})
	})
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMetalLB(t *testing.T) {
	for name, test := range map[string]struct {
		kind  metallbtest.Kind
		noFRR bool
	}{
		"l2":          {kind: metallbtest.L2},
		"bgp":         {kind: metallbtest.BGP},
		"bgp, no frr": {kind: metallbtest.BGP, noFRR: true},
		"l2 and bgp":  {kind: metallbtest.Both},
	} {
		t.Run(name, func(t *testing.T) {
			hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newMetalLB(t, test.kind, test.noFRR) })
		})
	}
}

// TestServerRestarts ends the API server in the middle of a wait and starts it again: the wait goes on, and proves.
func TestServerRestarts(t *testing.T) {
	b := newMetalLB(t, metallbtest.L2, false)
	failed := 0
	opts := lbhooks.WaitOptions{Timeout: 5 * time.Minute, Poll: 50 * time.Millisecond, MaxPoll: 200 * time.Millisecond}
	opts.Pending = func(p lbhooks.Pending) {
		switch {
		case p.Err == nil && failed == 0:
			b.reader.must(cluster.StopAPIServer(t.Context()))
		case p.Err != nil:
			if failed++; failed == 3 {
				b.reader.must(cluster.StartAPIServer(t.Context()))
				b.reader.must(b.Show(t.Context(), hooktest.Out))
			}
		}
	}
	p, err := lbhooks.Wait(t.Context(), clock.RealClock{}, b.Hook(), b.Target(), opts)
	wantEvidence(t, p, err, true, "ServiceL2Status names")
	if failed < 3 {
		t.Errorf("%d observations failed while the API server was away, want 3 or more", failed)
	}
}

// TestOptionalNeeds: without what is optional a hook still proves, with a longer settle time.
func TestOptionalNeeds(t *testing.T) {
	define(t)
	s := newScene(t)
	var needs []lbhooks.Need
	for _, n := range metallb.NewBGP(nil, nil).Describe().Needs {
		if !n.Optional {
			needs = append(needs, n)
		}
	}
	r := newReader(t, s.Env, needs)
	b := metallbtest.New(metallbtest.Config{
		Kind: metallbtest.BGP, Dynamic: admin, Reader: r.dynamic, Kubernetes: r.kubernetes,
		Target: s.target(), Other: s.nodes[1].Name, Namespace: s.Namespace,
	})
	t.Cleanup(func() {
		_ = admin.Resource(metallb.NodeStates).Delete(context.Background(), s.nodes[0].Name, metav1.DeleteOptions{})
	})
	r.must(b.Show(t.Context(), hooktest.Out))
	p, err := b.Hook().Prove(t.Context(), b.Target())
	wantEvidence(t, p, err, true, "may not be read to confirm it")
	if p.Settle == nil || *p.Settle != 5*time.Second {
		t.Errorf("settle %v, want 5s: FRR's debounce cannot be seen", p.Settle)
	}
	r.unbind()
	if _, err := b.Hook().Prove(t.Context(), b.Target()); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("without its role: %v, want ErrUnavailable", err)
	}
}
