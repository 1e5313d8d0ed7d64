package keeper

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// placeWork is a place to look at: who serves there, and which pods are to be read.
type placeWork struct {
	place
	serving []guard.Serving
	keys    map[types.UID]guard.Key // of the pods to read
	uids    []types.UID             // sorted
	ready   map[types.UID]bool      // pods that slices show as Ready
	sum     uint64                  // of who serves, and how
}

// seed of the sums; they never leave the process.
var seed = maphash.MakeSeed()

// work lists the places to look at: where a changed Service has two or more endpoints on a node, or a mark, if who serves
// there is not who served when they were looked at last; and where a mark is to go.
func (c *Controller) work(namespace string, dirty map[string]bool) []placeWork {
	uneven := c.uneven(namespace)
	nodes := c.nodesToLookAt(namespace, dirty, uneven)
	spares := maps.Clone(uneven)
	var out []placeWork
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		at := place{namespace, node}
		c.mu.Lock()
		w := placeWork{place: at, keys: map[types.UID]guard.Key{}, ready: map[types.UID]bool{}}
		known := c.places[at]
		asleep := known != nil && known.read && known.rests()
		if known != nil {
			for _, p := range known.marked {
				w.keys[p.uid] = guard.Key{Namespace: namespace, Name: p.name}
			}
		}
		c.mu.Unlock()
		there := false
		c.Store.Read(func(v *cluster.StoreView) { there = c.gather(v, &w, spares) })
		if there && (!asleep || known.sum != w.sum) {
			out = append(out, w)
		}
	}
	return out
}

// nodesToLookAt lists the nodes on which the changed Services need keepers or have marks, and those where a mark is to go.
func (c *Controller) nodesToLookAt(namespace string, dirty, uneven map[string]bool) map[string]bool {
	nodes := map[string]bool{}
	for name := range dirty {
		c.Store.Read(func(v *cluster.StoreView) {
			if svc, ok := v.ReachedService(guard.Key{Namespace: namespace, Name: name}); ok && c.wants(v, svc) {
				crowded(svc, nodes)
				if uneven[name] || svc.Spare(v) {
					inhabited(svc, nodes)
				}
			}
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, state := range c.places {
		if at.namespace != namespace || nodes[at.node] {
			continue
		}
		if !state.rests() || slices.ContainsFunc(state.marked, func(p markedPod) bool { return p.names(dirty) }) {
			nodes[at.node] = true
		}
	}
	return nodes
}

// wants reports whether a Service that is reached from outside with policy Local is to have keepers.
func (c *Controller) wants(v *cluster.StoreView, svc *guard.ServiceFacts) bool {
	return !svc.Rotation.Nobody && (c.Wanted == nil || c.Wanted(v, svc))
}

// crowded adds the nodes on which a Service has two or more pods, be it for different ports.
func crowded(svc *guard.ServiceFacts, nodes map[string]bool) {
	first := map[string]types.UID{}
	for i := range svc.Ports {
		for k := range svc.Ports[i].Endpoints {
			e := &svc.Ports[i].Endpoints[k]
			if e.Node == "" || e.Pod == "" || e.Terminating {
				continue
			}
			if uid, ok := first[e.Node]; ok && uid != e.Pod {
				nodes[e.Node] = true
			}
			first[e.Node] = e.Pod
		}
	}
}

// inhabited adds the nodes on which a Service has any pod.
func inhabited(svc *guard.ServiceFacts, nodes map[string]bool) {
	for i := range svc.Ports {
		for k := range svc.Ports[i].Endpoints {
			if e := &svc.Ports[i].Endpoints[k]; e.Node != "" && e.Pod != "" && !e.Terminating {
				nodes[e.Node] = true
			}
		}
	}
}

// gather finds who serves at a place; false when there is nothing to do. A node that is leaving is left as it is: what
// becomes of its pods is decided by its claim, and a node that stays after all finds its marks where they were. spares remembers
// which Services of the namespace have endpoints that a scale-down may take as well.
func (c *Controller) gather(v *cluster.StoreView, w *placeWork, spares map[string]bool) bool {
	node, there := v.Node(w.node)
	if there && node.Leaving != guard.Stays {
		return false
	}
	if there {
		for svc := range v.ReachedServicesOn(w.node) {
			if svc.Key.Namespace == w.namespace && c.wants(v, svc) && reaches(svc.Rotation.Seat(w.node)) {
				spare, known := spares[svc.Key.Name]
				if !known {
					spare = svc.Spare(v)
					spares[svc.Key.Name] = spare
				}
				w.serve(svc, guard.Serving{Service: svc.Key.Name, Unready: svc.PublishNotReady, Sent: svc.SentTo(node), Spare: spare})
			}
		}
	}
	w.uids = slices.Sorted(maps.Keys(w.keys))
	return len(w.uids) > 0
}

// reaches reports whether the balancer sends to a node or could.
func reaches(seat guard.Seat) bool { return seat.In != guard.No || seat.Eligible }

// serve adds the ports of a Service with who serves them; each is like one that nobody serves yet.
func (w *placeWork) serve(svc *guard.ServiceFacts, like guard.Serving) {
	w.sum += maphash.String(seed, fmt.Sprint(like))
	for i := range svc.Ports {
		s := like
		for k := range svc.Ports[i].Endpoints {
			e := &svc.Ports[i].Endpoints[k]
			if e.Node != w.node || e.Pod == "" || e.PodKey.Namespace != w.namespace {
				continue
			}
			s.Pods = append(s.Pods, e.Pod)
			w.keys[e.Pod] = e.PodKey
			w.ready[e.Pod] = w.ready[e.Pod] || e.Ready && !e.Terminating && !svc.PublishNotReady
			// Order must not matter: slices list endpoints in any.
			w.sum += maphash.String(seed, fmt.Sprint(svc.Key.Name, i, e.Pod, e.Ready, e.Serving, e.Terminating))
		}
		slices.Sort(s.Pods)
		s.Pods = slices.Compact(s.Pods)
		same := func(o guard.Serving) bool { return o.Service == s.Service && slices.Equal(o.Pods, s.Pods) }
		if len(s.Pods) > 0 && !slices.ContainsFunc(w.serving, same) {
			w.serving = append(w.serving, s)
		}
	}
}

// request is what guard is asked about a place, but for times.
func (w *placeWork) request(pods map[types.UID]*corev1.Pod, foreign map[types.UID]bool) *guard.KeeperRequest {
	r := &guard.KeeperRequest{Serving: w.serving}
	for _, uid := range w.uids {
		pod := pods[uid]
		if pod == nil || pod.Spec.NodeName != w.node {
			continue
		}
		p := guard.KeptPodOf(pod)
		p.OwnerCosts = foreign[ownerOf(pod)]
		r.Pods = append(r.Pods, p)
	}
	return r
}

// lags reports whether slices show a pod as Ready that is not, or not any more. They may never say so: a pod that is not Ready for
// a moment changes no slice.
func (w *placeWork) lags(r *guard.KeeperRequest) bool {
	usable := map[types.UID]bool{}
	for i := range r.Pods {
		usable[r.Pods[i].UID] = r.Pods[i].Usable
	}
	for uid, ready := range w.ready {
		if ready && !usable[uid] {
			return true
		}
	}
	return false
}

// orphaned reports whether a pod with a young mark has no owner, and so no cost: one may adopt it any moment, as when pods were
// there before their ReplicaSet was.
func orphaned(plan *guard.KeeperPlan, pods map[types.UID]*corev1.Pod) bool {
	for mark := range plan.Since {
		if pod := pods[mark.Pod]; pod != nil && metav1.GetControllerOfNoCopy(pod) == nil {
			return true
		}
	}
	return false
}

// foreignOwners lists the owners whose pods have deletion costs that somebody else sets.
func foreignOwners(pods map[types.UID]*corev1.Pod) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, pod := range pods {
		if p := guard.KeptPodOf(pod); p.ForeignCost() {
			out[ownerOf(pod)] = true
		}
	}
	return out
}

func ownerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return owner.UID
	}
	return pod.UID
}
