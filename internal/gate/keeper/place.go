package keeper

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
)

// markedPod is a pod of a place that was seen with a mark.
type markedPod struct {
	uid   types.UID
	name  string
	marks string // Services, with commas
}

// names reports whether the mark names one of these Services.
func (p *markedPod) names(services map[string]bool) bool {
	for name := range strings.SplitSeq(p.marks, ",") {
		if services[name] {
			return true
		}
	}
	return false
}

// place is one namespace on one node.
type place struct{ namespace, node string }

// placeState is what is remembered of a place between two looks.
type placeState struct {
	sum     uint64 // of who served when its pods were read
	since   map[guard.Mark]time.Time
	marked  []markedPod
	keepers int32
	uneven  []string // Services: see guard.KeeperPlan
	read    bool     // else the pods are to be read in any case
	again   bool     // they are to be read once more: something was written, or slices and pods disagree
}

// rests reports whether nothing is to be done at a place until who serves there changes.
func (s *placeState) rests() bool { return len(s.since) == 0 && !s.again }

func (c *Controller) since(p place) map[guard.Mark]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.places[p]; s != nil {
		return s.since
	}
	return nil
}

// remember notes what the next look at a place needs, in a state that says already what is to be read again.
func (c *Controller) remember(w *placeWork, plan *guard.KeeperPlan, pods map[types.UID]*corev1.Pod, state *placeState) {
	state.sum, state.keepers, state.uneven = w.sum, int32(plan.Keepers), plan.Uneven //nolint:gosec // ports on a node
	if len(plan.Since) > 0 {
		state.since = plan.Since
	}
	for _, uid := range w.uids {
		pod := pods[uid]
		if pod == nil || pod.Spec.NodeName != w.node {
			continue
		}
		marks, _ := guard.KeeperOf(pod.Annotations[guard.AnnotationKeeper])
		if i := slices.IndexFunc(plan.Changes, func(ch guard.KeeperChange) bool { return ch.UID == uid }); i >= 0 {
			written, _ := guard.KeeperOf(plan.Changes[i].Value)
			marks = append(slices.Clone(marks), written...) // whichever of them stands by now
			slices.Sort(marks)
			marks = slices.Compact(marks)
		}
		if len(marks) > 0 {
			state.marked = append(state.marked, markedPod{uid, pod.Name, strings.Join(marks, ",")})
		}
	}
	c.mu.Lock()
	var was []string
	if old := c.places[w.place]; old != nil {
		was = old.uneven
	}
	delete(c.places, w.place)
	if len(w.serving) > 0 || len(state.marked) > 0 || !state.rests() {
		c.places[w.place] = state
	}
	c.mu.Unlock()
	if !slices.Equal(was, plan.Uneven) {
		for _, name := range slices.Concat(was, plan.Uneven) {
			c.service(guard.Key{Namespace: w.namespace, Name: name}) // for the pods that are alone elsewhere
		}
	}
}

// uneven returns the Services of a namespace that are uneven on some node.
func (c *Controller) uneven(namespace string) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]bool{}
	for at, state := range c.places {
		if at.namespace == namespace {
			for _, name := range state.uneven {
				out[name] = true
			}
		}
	}
	return out
}

func (c *Controller) count() {
	if c.Count == nil {
		return
	}
	c.mu.Lock()
	n := 0
	for _, p := range c.places {
		n += int(p.keepers)
	}
	c.mu.Unlock()
	c.Count(n)
}
