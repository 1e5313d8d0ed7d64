package guard

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// actsWithin is how long after a scaling was asked for its controller may still choose: what the passing of time changes
// within it is undetermined.
const actsWithin = 10 * time.Second

// ranked is a pod as the ReplicaSet controller compares it.
//
// Source: ActivePodsWithRanks in k8s.io/kubernetes/pkg/controller/controller_utils.go. Its order is none that is
// transitive throughout: pods that were Ready at different times in one bucket are told apart by their UIDs, pods that
// were Ready at the same time by other things. And it keeps pods that are alike in all of it in the order in which it
// happened to have them.
type ranked struct {
	pod      *corev1.Pod
	bound    bool // to a node
	phase    int64
	ready    bool
	cost     int64
	beside   int64     // active pods of all ReplicaSets of the same controller on its node
	readyAt  time.Time // zero while it is not Ready, or where nobody says
	restarts [2]int64  // most of any container, most of any sidecar
}

var phaseOrder = map[corev1.PodPhase]int64{corev1.PodPending: 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}

func rankOf(pod *corev1.Pod, beside int) ranked {
	r := ranked{
		pod: pod, bound: pod.Spec.NodeName != "", phase: phaseOrder[pod.Status.Phase], cost: deletionCost(pod), beside: int64(beside),
		restarts: restartsOf(pod),
	}
	ready := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if ready >= 0 && pod.Status.Conditions[ready].Status == corev1.ConditionTrue {
		r.ready, r.readyAt = true, pod.Status.Conditions[ready].LastTransitionTime.Time
	}
	return r
}

// deletionCost reads controller.kubernetes.io/pod-deletion-cost as the controller does: 0 for what is not an int32, has a
// plus sign or leading zeros.
func deletionCost(pod *corev1.Pod) int64 {
	text := pod.Annotations[corev1.PodDeletionCost]
	if text == "" || text[0] == '+' || text[0] == '0' && text != "0" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return n
}

func restartsOf(pod *corev1.Pod) (most [2]int64) {
	for _, c := range pod.Status.ContainerStatuses {
		most[0] = max(most[0], int64(c.RestartCount))
	}
	for _, c := range pod.Status.InitContainerStatuses {
		sidecar := slices.ContainsFunc(pod.Spec.InitContainers, func(i corev1.Container) bool {
			return i.Name == c.Name && i.RestartPolicy != nil && *i.RestartPolicy == corev1.ContainerRestartPolicyAlways
		})
		if sidecar {
			most[1] = max(most[1], int64(c.RestartCount))
		}
	}
	return most
}

// class is what of the order is transitive, at a time: pods of a lower class go first. Its last part is the bucket of
// the time for which a pod has been Ready.
func (r *ranked) class(at time.Time) [6]int64 {
	class := [6]int64{bit(r.bound), r.phase, bit(r.ready), r.cost, -r.beside}
	if r.ready {
		class[5] = bucket(r.readyAt, at)
	}
	return class
}

// classNames say what puts a pod before another, by the part of their classes that differs first.
var classNames = [6]func(*ranked) string{
	func(*ranked) string { return "not on a node yet" },
	func(r *ranked) string { return "phase " + string(r.pod.Status.Phase) },
	func(*ranked) string { return "not Ready" },
	func(r *ranked) string { return fmt.Sprintf("deletion cost %d", r.cost) },
	func(r *ranked) string { return fmt.Sprintf("%d pods on its node", r.beside) },
	func(*ranked) string { return "Ready for a shorter time" },
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// bucket is the logarithm to the base of 2 of an age in nanoseconds; an age that nobody knows goes before all others.
func bucket(since, at time.Time) int64 {
	age := at.Sub(since)
	switch {
	case since.IsZero():
		return math.MinInt64
	case age <= 0:
		return -1
	}
	return int64(math.Log2(float64(age)))
}

// before reports whether the controller takes a before b, both of one class; neither goes first when they are alike.
func (r *ranked) before(o *ranked, at time.Time) bool {
	if r.ready && !r.readyAt.Equal(o.readyAt) {
		return r.pod.UID < o.pod.UID
	}
	if c := slices.Compare(r.restarts[:], o.restarts[:]); c != 0 {
		return c > 0
	}
	created, other := r.pod.CreationTimestamp.Time, o.pod.CreationTimestamp.Time
	if created.Equal(other) {
		return false
	}
	if c := cmp.Compare(bucket(created, at), bucket(other, at)); c != 0 {
		return c < 0
	}
	return r.pod.UID < o.pod.UID
}

// taken is what the controller takes of some pods at one time: those that surely go, and as many of the tied as are left
// to choose. Why is what puts a pod before those that stay, by its place among sure; tied ones are alike.
type taken struct {
	sure []ranked
	why  []string
	tied []ranked
	left int // of tied: fewer than there are
}

// take says which k of some pods, at least one and less than all, the controller takes at a time. Pods that are alike, or that the order leads around in a
// circle, are tied: which of them go depends on the order in which the controller happened to have them. Of pods that are
// not, each goes before each of the next, so that every way of sorting by comparisons agrees.
func take(of []ranked, k int, at time.Time) taken {
	of = slices.Clone(of)
	slices.SortFunc(of, func(a, b ranked) int {
		ca, cb := a.class(at), b.class(at)
		return cmp.Or(slices.Compare(ca[:], cb[:]), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	last := of[k-1].class(at)
	same := func(r ranked) bool { return r.class(at) == last }
	from := slices.IndexFunc(of, same)
	to := len(of)
	if beyond := slices.IndexFunc(of[k:], func(r ranked) bool { return !same(r) }); beyond >= 0 {
		to = k + beyond
	}
	sortClass(of[from:to], at)
	for from < k {
		end := from + knot(of[from:to], at)
		if end > k {
			t := taken{sure: of[:from], tied: of[from:end], left: k - from}
			t.explain(&of[end-1], at)
			return t
		}
		from = end
	}
	t := taken{sure: of[:k]}
	t.explain(&of[k], at)
	return t
}

// sortClass sorts pods of one class by the number of those that may go before them. Knots stand together then, in their order.
func sortClass(class []ranked, at time.Time) {
	type contender struct {
		ranked
		rivals int
	}
	all := make([]contender, len(class))
	for i := range class {
		all[i].ranked = class[i]
		for j := range class {
			if i != j && !class[i].before(&class[j], at) {
				all[i].rivals++
			}
		}
	}
	slices.SortStableFunc(all, func(a, b contender) int { return cmp.Compare(a.rivals, b.rivals) })
	for i := range all {
		class[i] = all[i].ranked
	}
}

// knot is the size of the first knot of an ordered class: pods that are alike or lead around in a circle, and of which each
// goes before each of the rest.
func knot(class []ranked, at time.Time) int {
	end := 1
	for i := 0; i < end; i++ {
		for j := len(class) - 1; j >= end; j-- {
			if !class[i].before(&class[j], at) {
				end = j + 1
			}
		}
	}
	return end
}

// explain says of each pod that surely goes what puts it before one that may stay.
func (t *taken) explain(stays *ranked, at time.Time) {
	other := stays.class(at)
	t.why = make([]string, len(t.sure))
	for i := range t.sure {
		r := &t.sure[i]
		class := r.class(at)
		t.why[i] = r.apart(stays)
		for part := range class {
			if class[part] != other[part] {
				t.why[i] = classNames[part](r)
				break
			}
		}
	}
}

// apart says what puts a pod before another of its class.
func (r *ranked) apart(o *ranked) string {
	switch {
	case r.ready && !r.readyAt.Equal(o.readyAt):
		return "its UID, among pods Ready for about as long"
	case r.restarts != o.restarts:
		return "restarted more often"
	}
	return "created later, or its UID"
}

// instants are the times, from now on and within those at which the controller may act, at which the order of some pods
// may change: now, and whenever an age enters its next bucket.
func instants(of []ranked, now time.Time) []time.Time {
	out := []time.Time{now}
	end := now.Add(actsWithin)
	for i := range of {
		for _, since := range []time.Time{of[i].readyAt, of[i].pod.CreationTimestamp.Time} {
			if since.IsZero() {
				continue
			}
			age := time.Duration(1)
			if was := now.Sub(since); was > 0 {
				age <<= bits.Len64(uint64(was))
			}
			for at := since.Add(age); age > 0 && !at.After(end); at = since.Add(age) {
				out = append(out, at)
				age <<= 1
			}
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// beside counts the active pods on each node among those that the ReplicaSets of one controller select.
func beside(of []*corev1.Pod) map[string]int {
	on := map[string]int{}
	for _, p := range of {
		if active(p) {
			on[p.Spec.NodeName]++
		}
	}
	return on
}

// active reports whether a pod counts for its ReplicaSet: neither finished nor terminating.
func active(p *corev1.Pod) bool { return !Finished(p) && p.DeletionTimestamp == nil }

// controlledBy reports whether an object has that controller.
func controlledBy(o metav1.Object, controller metav1.Object) bool {
	ref := metav1.GetControllerOfNoCopy(o)
	return ref != nil && ref.UID == controller.GetUID()
}
