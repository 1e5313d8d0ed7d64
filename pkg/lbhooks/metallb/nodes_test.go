package metallb_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
)

// steady are objects of which only nodes change.
type steady struct {
	*hooktest.Objects
	of *int
}

func (s steady) Steady() any { return s.of }

// TestNodesChange: while nodes come, change and go, what is kept of those that stay says the same as a look at all.
func TestNodesChange(t *testing.T) {
	changes := map[string]func(*corev1.Node){
		"nothing that counts": label("round", "1"),
		"selected":            label("role", "edge"),
		"not selected":        label("role", "other"),
		"excluded":            label(lbhooks.ExcludeLabel, "true"),
		"back":                func(n *corev1.Node) { delete(n.Labels, lbhooks.ExcludeLabel) },
	}
	const edge = `{apiVersion: metallb.io/v1beta1, kind: L2Advertisement, metadata: {name: l2}, spec: {nodeSelectors: [{matchLabels: {role: edge}}]}}`
	svc, rng := gw(), rand.New(rand.NewPCG(1, 2))
	hook, of := metallb.NewL2(nil, nil), new(int)
	compare := func(what string, all []*corev1.Node) {
		t.Helper()
		objects := &hooktest.Objects{
			AllNodes: all, Customs: customs(t, poolYAML, edge),
			AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(svc, discoveryv1.EndpointConditions{}, "n1", "n2", "n3")},
		}
		got, _ := hook.Match(svc, steady{objects, of})
		want, ok := metallb.NewL2(nil, nil).Match(svc, objects)
		if diff := cmp.Diff(want, got); diff != "" || !ok || got.Rest.In == "" {
			t.Fatalf("%s (%v) (-all +kept):\n%s", what, ok, diff)
		}
	}
	all := nodes(label("role", "edge"))
	for round := range 40 {
		for what, change := range changes {
			i := rng.IntN(len(all))
			switch n := all[i].DeepCopy(); {
			case what == "back" && round%4 == 0 && len(all) > 1:
				all = append(all[:i:i], all[i+1:]...)
			case what == "selected" && round%5 == 0 && len(all) < 5:
				n.Name = "m" + strconv.Itoa(round)
				all = append(all[:len(all):len(all)], n)
			default:
				change(n)
				all = append(all[:i:i], append([]*corev1.Node{n}, all[i+1:]...)...)
			}
			compare(fmt.Sprintf("round %d, %s", round, what), all)
		}
	}
	compare("none is left", nil)
}
