package gate

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/sweep"
)

const atATime = 10 // placements that are tried side by side

// TestRandomPlacements lets autoscalers scale workloads that stand at random on the nodes that send to them, each of which has
// one pod or more, down to one replica: behind the gate every node keeps its endpoint. Beside it the same is scaled down to as
// many replicas as there are nodes without a gate; what becomes of the nodes there is only counted.
func TestRandomPlacements(t *testing.T) {
	t.Parallel()
	n := sweep.Size(t, 6, 50)
	g := oneGate(t, "gate-clamp", 1, "--mode=enforce", "--scale=clamp")
	var mu sync.Mutex
	emptied, refusals := 0, 0
	slots := make(chan struct{}, atATime)
	t.Run("each", func(t *testing.T) {
		for i := range n {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				p := newPlacement(t, g.cluster, uint64(i))
				g.judges(p.Env)
				g.holds(p.Env, "web", int32(len(p.nodes)))
				refused := p.scaledDown(1)
				p.PodsReady("web", len(p.nodes))
				if empty := p.empty(); len(empty) > 0 {
					t.Errorf("%v: nodes %v, in rotation, have no endpoint: %v", p.pods, empty, on(p.Env, "web"))
				}
				without := newPlacement(t, g.cluster, uint64(i))
				without.scaledDown(int32(len(without.nodes)))
				without.PodsReady("web", len(without.nodes))
				mu.Lock()
				defer mu.Unlock()
				refusals += refused
				if len(without.empty()) > 0 {
					emptied++
				}
			})
		}
	})
	t.Logf("%d placements: behind the gate every node kept its endpoint, after %d refusals in all; without it %d left a node in rotation without one", n, refusals, emptied)
}

// placement is a Deployment "web" behind a NodePort Service of policy Local whose pods stand where chance put them.
type placement struct {
	*controlplane.Env
	cluster *controlplane.Cluster
	nodes   []string
	pods    []int // of each node
}

// newPlacement makes nodes that have room for just as many pods as chance gives each.
func newPlacement(t *testing.T, c *controlplane.Cluster, seed uint64) *placement {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	p := &placement{Env: c.Env(t), cluster: c}
	total := 0
	for range 2 + rng.IntN(3) {
		room := 1 + rng.IntN(3)
		total += room
		p.pods = append(p.pods, room)
		p.nodes = append(p.nodes, p.Nodes(1, longReady, func(n *corev1.Node) {
			n.Status.Allocatable = maps.Clone(n.Status.Allocatable)
			n.Status.Allocatable[corev1.ResourcePods] = *resource.NewQuantity(int64(room), resource.DecimalSI)
		})...)
	}
	p.Service("web")
	p.Deployment("web", int32(total))
	p.EndpointsReady("web", total)
	if have := on(p.Env, "web"); len(have) != len(p.nodes) {
		t.Fatalf("the pods are not where there was room: %v, not %v", have, p.pods)
	}
	return p
}

// scaledDown makes an autoscaler that wants one replica and may go down to some, waits until there are as many as the placement
// has nodes, and returns how often the autoscaler was refused.
func (p *placement) scaledDown(least int32) (refused int) {
	p.Helper()
	autoscale(p.Env, p.cluster, "web", least).set(p.Namespace, 1)
	p.Wait(fmt.Sprintf("%d replicas are wanted", len(p.nodes)), func(ctx context.Context) (bool, string, error) {
		d, err := p.Client.AppsV1().Deployments(p.Namespace).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return *d.Spec.Replicas == int32(len(p.nodes)), fmt.Sprintf("%d replicas", *d.Spec.Replicas), nil
	})
	for _, e := range eventsOf(p.Env, "HorizontalPodAutoscaler", "web") {
		if e.Reason == "FailedRescale" {
			refused += int(max(e.Count, 1))
		}
	}
	return refused
}

// empty lists the nodes without a pod.
func (p *placement) empty() []string {
	p.Helper()
	have := on(p.Env, "web")
	var out []string
	for _, n := range p.nodes {
		if have[n] == 0 {
			out = append(out, n)
		}
	}
	return out
}
