package placement

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Placed is where one pod may run, as things are when its turn comes.
type Placed struct {
	Pod    *corev1.Pod
	Answer Answer
	Node   string // the prediction; "" when it fits nowhere, when that is unknown, or when it fits only where pods were not read
}

// PlaceAll places pods one after the other: each takes the room, the ports and the place among its siblings that the next
// one finds gone. A pod that fits nowhere is tried again after the others, since they may be what it waits for. The
// results are in the order of the pods.
//
// The node is a prediction, and no more: the one with the fewest pods of the same owner, and among these the one that is
// least allocated, which is what the scheduler's default scores amount to where nothing else is preferred.
func (s *State) PlaceAll(pods []*corev1.Pod) []Placed {
	out := make([]Placed, len(pods))
	waiting := make([]int, len(pods))
	for i, p := range pods {
		out[i].Pod, waiting[i] = p, i
	}
	for len(waiting) > 0 {
		var again []int
		for _, i := range waiting {
			p := &out[i]
			var fits []*node
			p.Answer, fits = s.candidatesOf(p.Pod)
			if p.Answer.Fits() {
				if p.Node = s.predict(p.Pod, fits); p.Node != "" {
					s.Place(p.Pod, p.Node)
				}
				continue
			}
			again = append(again, i)
		}
		if len(again) == len(waiting) {
			break
		}
		waiting = again
	}
	return out
}

// predict picks the node on which a pod may land; "" when there is none.
func (s *State) predict(p *corev1.Pod, fits []*node) string {
	var siblings map[*node]int
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		siblings = s.owned[ref.UID]
	}
	asks := asked(p)
	var best *node
	bestSiblings, bestLoad := 0, 0.0
	for _, n := range fits {
		near, load := siblings[n], n.load(&asks)
		if best == nil || cmp.Or(cmp.Compare(near, bestSiblings), cmp.Compare(load, bestLoad)) < 0 {
			best, bestSiblings, bestLoad = n, near, load
		}
	}
	if best == nil {
		return ""
	}
	return best.name
}

// load is the part of a node's processor and memory, in the mean, that would be taken with a further pod on it; where no
// requests tell, the number of its pods tells.
func (n *node) load(asks *Resources) float64 {
	part := func(used, have int64) float64 {
		if have <= 0 {
			return 1
		}
		return float64(used) / float64(have)
	}
	pods := part(int64(len(n.pods)), int64(n.maxPods)) / 1000
	return (part(n.used.MilliCPU+asks.MilliCPU, n.allocatable.MilliCPU)+part(n.used.Memory+asks.Memory, n.allocatable.Memory))/2 + pods
}
