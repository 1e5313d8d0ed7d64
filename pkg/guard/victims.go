package guard

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// burst is how many pods the ReplicaSet controller deletes in one go; it ranks those that are left anew for the next.
const burst = 500

// draw is what a controller takes: all that could happen.
type draw struct {
	candidates []*corev1.Pod // sorted by name
	count      int           // of them go
	cases      []drawn       // one for each time at which the controller may choose; none: nothing goes
}

// drawn is what it takes at one time.
type drawn struct {
	sure []chosen
	ties []tie
}

// chosen is a pod that goes, with the reason.
type chosen struct {
	pod *corev1.Pod
	why string
}

// tie is pods of which a number goes, less than all, and nobody can tell which.
type tie struct {
	pods []*corev1.Pod
	take int
}

// fate is a pod that goes or may go.
type fate struct {
	chosen
	goes Goes
}

// owns is the UIDs of the pods among which the controller chooses.
func (t *ScaleTarget) owns() map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, p := range t.candidates() {
		out[p.UID] = true
	}
	return out
}

// candidates are the pods among which the controller chooses: its own, or those it will adopt, that are active; sorted by name.
func (t *ScaleTarget) candidates() []*corev1.Pod {
	var out []*corev1.Pod
	switch {
	case t.StatefulSet != nil:
		out = t.members()
	case t.Deployment != nil:
		for _, set := range t.ReplicaSets {
			out = append(out, ownPods(set, t.Pods)...)
		}
	case len(t.ReplicaSets) > 0:
		out = ownPods(t.ReplicaSets[0], t.Pods)
	case t.Selector != nil:
		for _, p := range t.Pods {
			if active(p) && t.Selector.Matches(labels.Set(p.Labels)) {
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, byName)
	return slices.CompactFunc(out, func(a, b *corev1.Pod) bool { return a.UID == b.UID })
}

func byName(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// draw finds what the controller takes when the workload is scaled down.
func (t *ScaleTarget) draw(after int32, now time.Time) draw {
	d := draw{candidates: t.candidates()}
	switch {
	case t.StatefulSet != nil:
		d.cases = []drawn{t.ordinals(after)}
	case t.Deployment != nil:
		sizes := shares(t.Deployment, t.ReplicaSets, after)
		if sizes == nil {
			d.cases = anyOf(d.candidates, after)
			break
		}
		d.cases = drawSets(t.ReplicaSets, sizes, t.Pods, now)
	case len(t.ReplicaSets) > 0:
		d.cases = drawSets(t.ReplicaSets, map[types.UID]int32{t.ReplicaSets[0].UID: after}, t.Pods, now)
	default:
		d.cases = anyOf(d.candidates, after)
	}
	for _, c := range d.cases {
		n := len(c.sure)
		for _, tie := range c.ties {
			n += tie.take
		}
		d.count = max(d.count, n)
	}
	return d
}

// anyOf is the choice of a controller of which nothing is known.
func anyOf(candidates []*corev1.Pod, after int32) []drawn {
	switch n := len(candidates) - int(after); {
	case n <= 0:
		return nil
	case after == 0:
		return []drawn{{sure: because("all go", candidates...)}}
	default:
		return []drawn{{ties: []tie{{candidates, n}}}}
	}
}

func because(why string, pods ...*corev1.Pod) []chosen {
	out := make([]chosen, len(pods))
	for i, p := range pods {
		out[i] = chosen{p, why}
	}
	return out
}

// drawSets is the choice of the ReplicaSet controller for sets that get a size, at each time at which it may differ.
func drawSets(sets []*appsv1.ReplicaSet, sizes map[types.UID]int32, pods []*corev1.Pod, now time.Time) []drawn {
	type job struct {
		of     []ranked
		remove int
	}
	var jobs []job
	var all []ranked
	for _, set := range sets {
		size, ok := sizes[set.UID]
		own := ownPods(set, pods)
		if n := len(own) - int(size); ok && n > 0 {
			on := beside(related(set, sets, pods))
			of := make([]ranked, len(own))
			for i, p := range own {
				of[i] = rankOf(p, on[p.Spec.NodeName])
			}
			jobs, all = append(jobs, job{of, n}), append(all, of...)
		}
	}
	var out []drawn
	for _, at := range instants(all, now) {
		var c drawn
		for _, j := range jobs {
			c.add(j.of, j.remove, at)
		}
		if len(c.sure)+len(c.ties) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// add takes n of the pods of one set, in bursts. Where a burst is undetermined, so is every one after it.
func (c *drawn) add(of []ranked, n int, at time.Time) {
	if n >= len(of) {
		c.sure = append(c.sure, because("all go", podsOf(of)...)...)
		return
	}
	for n > 0 {
		now := take(of, min(n, burst), at)
		for i := range now.sure {
			c.sure = append(c.sure, chosen{now.sure[i].pod, now.why[i]})
		}
		n -= len(now.sure)
		if now.left > 0 {
			tied := now.tied
			if n > now.left {
				tied = remaining(of, now.sure)
			}
			c.ties = append(c.ties, tie{podsOf(tied), n})
			return
		}
		of = remaining(of, now.sure)
		fewer(of, now.sure)
	}
}

// remaining returns a copy of pods without those that were taken.
func remaining(of, taken []ranked) []ranked {
	gone := map[types.UID]bool{}
	for i := range taken {
		gone[taken[i].pod.UID] = true
	}
	return slices.DeleteFunc(slices.Clone(of), func(r ranked) bool { return gone[r.pod.UID] })
}

// fewer counts anew who is on a node once some have gone from there.
func fewer(of, taken []ranked) {
	left := map[string]int64{}
	for i := range taken {
		left[taken[i].pod.Spec.NodeName]++
	}
	for i := range of {
		of[i].beside = max(0, of[i].beside-left[of[i].pod.Spec.NodeName])
	}
}

func podsOf(of []ranked) []*corev1.Pod {
	out := make([]*corev1.Pod, len(of))
	for i := range of {
		out[i] = of[i].pod
	}
	return out
}

// ownPods lists the active pods of a ReplicaSet, those without a controller that it will adopt among them.
func ownPods(set *appsv1.ReplicaSet, pods []*corev1.Pod) []*corev1.Pod {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil
	}
	var out []*corev1.Pod
	for _, p := range pods {
		orphan := metav1.GetControllerOfNoCopy(p) == nil
		if p.Namespace == set.Namespace && active(p) && (orphan || controlledBy(p, set)) && selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// related lists the pods by which the controller ranks those of a set: all that the ReplicaSets of its controller select,
// whoever owns them; none for a set that has no controller, which is therefore blind to nodes.
func related(set *appsv1.ReplicaSet, sets []*appsv1.ReplicaSet, pods []*corev1.Pod) []*corev1.Pod {
	owner := metav1.GetControllerOfNoCopy(set)
	if owner == nil {
		return nil
	}
	var selectors []labels.Selector
	for _, s := range sets {
		if ref := metav1.GetControllerOfNoCopy(s); ref != nil && ref.UID == owner.UID {
			if selector, err := metav1.LabelSelectorAsSelector(s.Spec.Selector); err == nil {
				selectors = append(selectors, selector)
			}
		}
	}
	var out []*corev1.Pod
	for _, p := range pods {
		if p.Namespace == set.Namespace && slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(p.Labels)) }) {
			out = append(out, p)
		}
	}
	return out
}

// victims lists the pods that go in every case, in the controller's order, and then those that go in some.
func (d *draw) victims() []fate {
	var out []fate
	sure := map[types.UID]int{}
	for _, c := range d.cases {
		for _, v := range c.sure {
			sure[v.pod.UID]++
		}
	}
	seen := map[types.UID]bool{}
	var may []fate
	add := func(v chosen) {
		switch {
		case seen[v.pod.UID]:
			return
		case sure[v.pod.UID] == len(d.cases):
			out = append(out, fate{v, Will})
		default:
			may = append(may, fate{v, May})
		}
		seen[v.pod.UID] = true
	}
	for _, c := range d.cases {
		for _, v := range c.sure {
			if sure[v.pod.UID] < len(d.cases) {
				v.why += ", which time may change"
			}
			add(v)
		}
	}
	for _, c := range d.cases {
		for _, tie := range c.ties {
			for _, p := range tie.pods {
				add(chosen{p, tie.words()})
			}
		}
	}
	slices.SortStableFunc(may, func(a, b fate) int { return byName(a.pod, b.pod) })
	return append(out, may...)
}

func (t *tie) words() string {
	return strconv.Itoa(t.take) + " of " + strconv.Itoa(len(t.pods)) + " that are alike to the controller"
}
