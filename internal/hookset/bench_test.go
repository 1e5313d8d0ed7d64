package hookset_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// large is a large cluster whose lists are at hand at once, as a snapshot's are.
type large struct {
	hooktest.Objects

	nodes  []*corev1.Node
	custom map[string][]*unstructured.Unstructured
	slices map[string][]*discoveryv1.EndpointSlice
}

func (l *large) Nodes() []*corev1.Node { return l.nodes }

func (l *large) Custom(gk schema.GroupKind) []*unstructured.Unstructured { return l.custom[gk.Kind] }

func (l *large) Slices(_, name string) []*discoveryv1.EndpointSlice { return l.slices[name] }

func newLarge(services int) (*large, []*corev1.Service) {
	l := &large{custom: map[string][]*unstructured.Unstructured{}, slices: map[string][]*discoveryv1.EndpointSlice{}}
	for i := range 5000 {
		l.nodes = append(l.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%04d", i)}})
	}
	l.custom["IPAddressPool"], l.custom["L2Advertisement"] = metalLB()[:1], metalLB()[1:2]
	var all []*corev1.Service
	for i := range services {
		svc := service(lb)
		svc.Name = fmt.Sprintf("s%d", i)
		node := l.nodes[i%5000].Name
		l.custom["ServiceL2Status"] = append(l.custom["ServiceL2Status"], custom("metallb.io", "ServiceL2Status", nil,
			map[string]any{"node": node, "serviceName": svc.Name, "serviceNamespace": "e"}, map[string]string{"metallb.io/node": node}))
		l.slices[svc.Name] = []*discoveryv1.EndpointSlice{hooktest.Slice(svc, discoveryv1.EndpointConditions{}, node)}
		all = append(all, svc)
	}
	return l, all
}

// BenchmarkMatch matches 10,000 Services of MetalLB in a cluster of 5,000 nodes.
func BenchmarkMatch(b *testing.B) {
	objects, services := newLarge(10_000)
	for b.Loop() {
		set := hookset.New(hookset.Deps{})
		for _, svc := range services {
			if r := set.Match(svc, objects); len(r.Seats) != 1 {
				b.Fatalf("%d seats", len(r.Seats))
			}
		}
	}
}

// A set is asked from several goroutines at once, for one view or for several.
func TestMatchAtOnce(t *testing.T) {
	first, services := newLarge(50)
	second, _ := newLarge(50)
	set := hookset.New(hookset.Deps{})
	for _, objects := range []lbhooks.Objects{first, second} {
		for _, svc := range services {
			t.Run(svc.Name, func(t *testing.T) {
				t.Parallel()
				if r := set.Match(svc, objects); r.Hook != "metallb-l2" || len(r.Seats) != 1 {
					t.Errorf("%q, %d seats", r.Hook, len(r.Seats))
				}
			})
		}
	}
}
