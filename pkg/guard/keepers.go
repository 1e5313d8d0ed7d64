package guard

import (
	"cmp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The pod-deletion-costs that come with a mark: KeeperCost on a node that a balancer sends to, or may, IdleCost on one that it
// could send to and does not, and SharedCost where pods of another workload serve on the node as well, so that a scale-down of
// this one does not empty it. A cost is ours where the pod has a mark and the cost one of these.
const (
	KeeperCost = "1000000"
	IdleCost   = "999999"
	SharedCost = "999998"
)

// KeptPod is what the marks need of a pod, read live.
type KeptPod struct {
	Key        Key
	UID        types.UID
	Usable     bool      // Ready, neither terminating nor finished
	Addressed  bool      // has an address, and is neither terminating nor finished
	Going      bool      // terminating or finished: not worth a write
	ReadySince time.Time // zero while it is not Ready
	Kept       []string  // Services that its mark names, sorted
	Relied     []string  // those of them for which the mark may be relied on
	Cost       *string   // controller.kubernetes.io/pod-deletion-cost, nil where there is none
	// Ranked says that scale-downs choose among the pods of its owner by that cost.
	Ranked bool
	// Flat says that they do not look at how many of them share a node: its ReplicaSet has no controller.
	Flat bool
	// Workload names its owner, the same for all ReplicaSets of a Deployment; "" without one.
	Workload string
	// OwnerCosts says that somebody else sets the costs of its owner's pods.
	OwnerCosts bool
}

// KeptPodOf states a Pod as the marks need it, but for OwnerCosts.
func KeptPodOf(pod *corev1.Pod) KeptPod {
	p := KeptPod{Key: Key{pod.Namespace, pod.Name}, UID: pod.UID, Going: terminating(pod) || Finished(pod)}
	p.Kept, p.Relied = KeeperOf(pod.Annotations[AnnotationKeeper])
	p.Addressed = pod.Status.PodIP != "" && !p.Going
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			p.ReadySince = c.LastTransitionTime.Time
			p.Usable = !p.Going
		}
	}
	if cost, ok := pod.Annotations[corev1.PodDeletionCost]; ok {
		p.Cost = &cost
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		p.Ranked = owner.Kind == "ReplicaSet" || owner.Kind == "ReplicationController"
		p.Flat, p.Workload = p.Ranked && hash == "", owner.Kind+"/"+strings.TrimSuffix(owner.Name, "-"+hash)
	}
	return p
}

// ForeignCost reports whether the pod has a deletion cost that somebody else set.
func (p *KeptPod) ForeignCost() bool {
	return p.Cost != nil && (len(p.Kept) == 0 || !slices.Contains([]string{KeeperCost, IdleCost, SharedCost}, *p.Cost))
}

// others reports whether the costs of its owner's pods are somebody else's.
func (p *KeptPod) others() bool { return p.OwnerCosts || p.ForeignCost() }

// Mark is one Service on one pod.
type Mark struct {
	Pod     types.UID
	Service string
}

// CostChange says what becomes of a pod's deletion cost in the patch that changes its marks.
type CostChange string

// The values of KeeperChange.Cost.
const (
	CostStays    CostChange = ""
	CostIsSet    CostChange = "set"    // to KeeperCost: nobody else had set one
	CostIsIdle   CostChange = "idle"   // to IdleCost: the same
	CostIsShared CostChange = "shared" // to SharedCost: the same
	CostIsTaken  CostChange = "taken"  // ours goes with the last mark
)

// KeeperChange is one patch of one pod.
type KeeperChange struct {
	Pod   Key
	UID   types.UID
	Value string // of the annotation; "": it goes
	Cost  CostChange
}

// KeeperPlan is what is to be done about the marks of one namespace on one node.
type KeeperPlan struct {
	Changes []KeeperChange // sorted by pod; none in a cluster at rest
	// Since are the marks that time will change, and since when they were read as they are: young ones will be relied on, those
	// that nobody needs will go. It is handed to the next call.
	Since map[Mark]time.Time
	// StandDown lists the keepers that get no cost because somebody else sets those of their pods, sorted.
	StandDown []Key
	Keepers   int // ports of Services that have a keeper on this node
	// Uneven lists the Services that could lose a pod of this node without harm, and whose scale-downs would as soon take one
	// that is alone on another node; sorted.
	Uneven []string
}

// Serving is one port of a Service in one family, or several that the same pods serve, with the pods behind its endpoints
// on the node, whatever their state.
type Serving struct {
	Service string
	Pods    []types.UID
	Unready bool // publishNotReadyAddresses: endpoints serve before they are Ready
	Sent    bool // a balancer sends to the node for the Service, or may
	Spare   bool // the Service has endpoints that a scale-down may take as well: where nobody sends, or on a node that is uneven
}

// KeeperRequest is one namespace on one node: marks of different namespaces never meet.
type KeeperRequest struct {
	Serving []Serving          // of Services that are to have keepers; nobody needs the marks of others
	Pods    []KeptPod          // every pod that serves one of them or has a mark
	Since   map[Mark]time.Time // of the plan before
	Began   time.Time          // when the reading of Pods began
	Read    time.Time          // when it was over
	After   time.Duration      // more than an eviction takes from its review on
}

// Keepers decides which pods keep a node: for each port of a Service with two or more usable endpoints there one, a pod that
// is a keeper already before any other, then the one that serves most, then the one that is Ready for longest. A port with
// one endpoint needs none, since nobody may evict that one; a mark that it has stays. It gets one all the same, for the cost,
// where a scale-down would as soon take it as pods that nobody needs.
//
// The cost is that of the node, whenever the pod has a mark: a pod that its owner adopts later, or whose node enters
// rotation, gets it then.
//
// An eviction of the very pod that is marked may have been let go before it was, and be carried out after it. So a mark
// protects its pod at once and is young: the others may not go for its sake. It is relied on, for good, once it was read in
// place for longer than an eviction takes and the pod lives then. Only after that other marks of the port go.
func Keepers(r *KeeperRequest) KeeperPlan {
	k := newKeeping(r)
	chosen := k.choose()
	k.ripen()
	k.retire(chosen)
	plan := KeeperPlan{Since: k.since, Keepers: len(chosen), Uneven: k.uneven()}
	for i := range r.Pods {
		p := &r.Pods[i]
		change, standDown := k.change(p)
		if change != nil {
			plan.Changes = append(plan.Changes, *change)
		}
		if standDown {
			plan.StandDown = append(plan.StandDown, p.Key)
		}
	}
	slices.SortFunc(plan.Changes, func(a, b KeeperChange) int { return a.Pod.Compare(b.Pod) })
	slices.SortFunc(plan.StandDown, Key.Compare)
	return plan
}

// keeping is the work on one request.
type keeping struct {
	request *KeeperRequest
	pods    map[types.UID]*KeptPod
	marks   map[types.UID]map[string]bool // as they are to be: by Service, whether it is relied on
	serves  map[types.UID]int             // how many ports a usable pod serves: the more, the better a keeper
	since   map[Mark]time.Time
}

func newKeeping(r *KeeperRequest) *keeping {
	k := &keeping{
		request: r, pods: map[types.UID]*KeptPod{}, marks: map[types.UID]map[string]bool{}, serves: map[types.UID]int{},
		since: map[Mark]time.Time{},
	}
	for i := range r.Pods {
		p := &r.Pods[i]
		k.pods[p.UID] = p
		k.marks[p.UID] = map[string]bool{}
		for _, s := range p.Kept {
			k.marks[p.UID][s] = slices.Contains(p.Relied, s)
		}
	}
	for i := range r.Serving {
		for _, p := range k.usable(&r.Serving[i]) {
			k.serves[p.UID]++
		}
	}
	return k
}

// usable lists the pods that serve now.
func (k *keeping) usable(s *Serving) []*KeptPod {
	var out []*KeptPod
	for _, uid := range s.Pods {
		if p := k.pods[uid]; p != nil && (p.Usable || s.Unready && p.Addressed) && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// choose returns the keeper of each port in need, by its place in the request, and adds the marks that are missing: ports
// whose keeper is there already come first, so that it is preferred for the others.
func (k *keeping) choose() map[int]types.UID {
	chosen := map[int]types.UID{}
	for _, marked := range []bool{true, false} {
		for i := range k.request.Serving {
			s := &k.request.Serving[i]
			usable := k.usable(s)
			if _, has := chosen[i]; has || !k.wanted(s, usable) {
				continue
			}
			if marked {
				usable = slices.DeleteFunc(usable, func(p *KeptPod) bool { return !slices.Contains(p.Kept, s.Service) })
			}
			if len(usable) == 0 {
				continue
			}
			best := slices.MinFunc(usable, func(a, b *KeptPod) int { return k.prefer(a, b, s.Service) })
			chosen[i] = best.UID
			if _, has := k.marks[best.UID][s.Service]; !has {
				k.marks[best.UID][s.Service] = false
			}
		}
	}
	return chosen
}

// wanted reports whether a port is to have a keeper. Of a single pod the mark is worth its cost alone: where the pods of its
// owner on other nodes could go without harm, or other ports have other pods on this one, next to which it ranks among
// the first to go.
func (k *keeping) wanted(s *Serving, usable []*KeptPod) bool {
	if len(usable) != 1 {
		return len(usable) > 1
	}
	p := usable[0]
	return p.Ranked && !p.others() && (s.Sent && s.Spare || k.beside(p, s.Service))
}

// uneven lists the Services with two or more pods here of several workloads, or of one whose scale-downs are blind to nodes.
func (k *keeping) uneven() []string {
	found := map[string]bool{}
	for i := range k.request.Serving {
		s := &k.request.Serving[i]
		usable := k.usable(s)
		if len(usable) > 1 && (shared(usable) || slices.ContainsFunc(usable, func(p *KeptPod) bool { return p.Flat })) {
			found[s.Service] = true
		}
	}
	return sortedKeys(found)
}

// shared reports whether pods are of several workloads.
func shared(pods []*KeptPod) bool {
	return slices.ContainsFunc(pods, func(p *KeptPod) bool { return p.Workload != pods[0].Workload })
}

// beside reports whether another pod serves some port of a Service on the node.
func (k *keeping) beside(p *KeptPod, service string) bool {
	return slices.ContainsFunc(k.request.Serving, func(s Serving) bool {
		return s.Service == service && slices.ContainsFunc(k.usable(&s), func(o *KeptPod) bool { return o != p })
	})
}

// prefer orders candidates: one that is Ready, then one that is relied on already, then one with more marks, so that others
// can be freed, then one that serves more, then the elder one.
func (k *keeping) prefer(a, b *KeptPod, service string) int {
	return cmp.Or(
		compareBool(b.Usable, a.Usable),
		compareBool(slices.Contains(b.Relied, service), slices.Contains(a.Relied, service)),
		cmp.Compare(len(k.marks[b.UID]), len(k.marks[a.UID])),
		cmp.Compare(k.serves[b.UID], k.serves[a.UID]),
		a.ReadySince.Compare(b.ReadySince),
		a.Key.Compare(b.Key), cmp.Compare(a.UID, b.UID),
	)
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// lasted reports whether a mark was read as it is for long enough, and notes since when if not.
func (k *keeping) lasted(m Mark) bool {
	since, known := k.request.Since[m]
	if known && k.request.Began.Sub(since) >= k.request.After {
		return true
	}
	if !known {
		since = k.request.Read
	}
	k.since[m] = since
	return false
}

// ripen lets young marks be relied on.
func (k *keeping) ripen() {
	for i := range k.request.Pods {
		p := &k.request.Pods[i]
		if p.Going {
			continue // it takes its marks along
		}
		for _, service := range p.Kept {
			if !slices.Contains(p.Relied, service) && k.lasted(Mark{p.UID, service}) {
				k.marks[p.UID][service] = true
			}
		}
	}
}

// retire takes away the marks that nobody needs: at once where another one is relied on, else after a while, since what is
// known of Services may lag.
func (k *keeping) retire(chosen map[int]types.UID) {
	for i := range k.request.Pods {
		p := &k.request.Pods[i]
		if p.Going {
			continue
		}
		for _, service := range p.Kept {
			serves, needed := k.needed(p, service, chosen)
			if !needed && (serves || k.lasted(Mark{p.UID, service})) {
				delete(k.marks[p.UID], service)
				delete(k.since, Mark{p.UID, service})
			}
		}
	}
}

// needed reports whether a pod serves a Service at all, and whether some port of it has no other keeper that was read with
// a mark to rely on.
func (k *keeping) needed(p *KeptPod, service string, chosen map[int]types.UID) (serves, needed bool) {
	for i := range k.request.Serving {
		s := &k.request.Serving[i]
		if s.Service != service || !slices.Contains(s.Pods, p.UID) {
			continue
		}
		serves = true
		keeper, ok := chosen[i]
		if !ok || keeper == p.UID || !slices.Contains(k.pods[keeper].Relied, service) {
			return true, true
		}
	}
	return serves, false
}
