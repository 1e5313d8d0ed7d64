package guard

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// best is a choice of as many victims that empties few footholds: the pods that hold something in it, and by Service the
// nodes that it empties all the same.
type best struct {
	kept  []keptFor
	empty map[int]int
}

// keptFor is a pod with the footholds that it keeps.
type keptFor struct {
	pod       *corev1.Pod
	footholds []int // by their place in the list of all
}

// choose finds such a choice: of the pods that may stay, again and again the one that holds most of what nothing holds yet.
// Where it does not matter it prefers marked keepers, and then pods that stay anyway.
func choose(footholds []foothold, d *draw) best {
	holds := map[types.UID][]int{}
	for i, p := range footholds {
		for _, u := range p.holders {
			holds[u] = append(holds[u], i)
		}
	}
	dear := d.dear()
	held := make([]bool, len(footholds))
	open := func(u types.UID) []int {
		return slices.DeleteFunc(slices.Clone(holds[u]), func(i int) bool { return held[i] })
	}
	out := best{empty: map[int]int{}}
	for range len(d.candidates) - d.count {
		var next keptFor
		for _, p := range d.candidates {
			of := open(p.UID)
			if c := len(of) - len(next.footholds); len(of) > 0 && (c > 0 || c == 0 && dear[p.UID] > dear[next.pod.UID]) {
				next = keptFor{p, of}
			}
		}
		if len(next.footholds) == 0 {
			break
		}
		for _, i := range next.footholds {
			held[i] = true
		}
		out.kept = append(out.kept, next)
	}
	lost := map[spot]bool{}
	for i, p := range footholds {
		if !held[i] && !lost[p.spot] {
			lost[p.spot] = true
			out.empty[p.service]++
		}
	}
	return out
}

// dear orders candidates by how much speaks for keeping them: a keeper's mark, and how surely they stay.
func (d *draw) dear() map[types.UID]int {
	out := map[types.UID]int{}
	for _, p := range d.candidates {
		out[p.UID] = 2
		if p.Annotations[AnnotationKeeper] != "" {
			out[p.UID] = 5
		}
	}
	for _, v := range d.victims() {
		out[v.pod.UID] -= map[Goes]int{May: 1, Will: 2}[v.goes]
	}
	return out
}

// spare says how the controller is brought to the better choice.
func (s *scaling) spare(b *best) string {
	if s.target.StatefulSet != nil {
		return "a StatefulSet takes its highest ordinals, wherever they are: take their nodes out of the balancer first"
	}
	var names []string
	for _, k := range b.kept {
		names = append(names, k.pod.Name)
	}
	slices.Sort(names)
	if len(names) > 3 {
		names = append(names[:3], fmt.Sprintf("+%d", len(names)-3))
	}
	return "keep " + strings.Join(names, ", ") + ": give them a higher controller.kubernetes.io/pod-deletion-cost"
}

// keepers lists the pods of the better choice with the Services that they keep on their nodes.
func (s *scaling) keepers(footholds []foothold, b *best) {
	for _, k := range b.kept {
		keeper := ScaleKeeper{Namespace: k.pod.Namespace, Name: k.pod.Name, UID: k.pod.UID, Node: k.pod.Spec.NodeName}
		for _, i := range k.footholds {
			keeper.Services = append(keeper.Services, s.judgements[footholds[i].service].svc.Key.Name)
		}
		slices.Sort(keeper.Services)
		keeper.Services = slices.Compact(keeper.Services)
		s.plan.Keepers = append(s.plan.Keepers, keeper)
	}
	slices.SortFunc(s.plan.Keepers, func(a, b ScaleKeeper) int { return strings.Compare(a.Name, b.Name) })
}
