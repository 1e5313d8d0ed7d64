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
	sum     uint64                  // of who serves, and how
}

// seed of the sums; they never leave the process.
var seed = maphash.MakeSeed()

// work lists the places to look at: where a changed Service has two or more endpoints on a node, or a mark, if who serves
// there is not who served when they were looked at last; and where a mark is to go.
func (c *Controller) work(namespace string, dirty map[string]bool) []placeWork {
	nodes := c.nodesToLookAt(namespace, dirty)
	var out []placeWork
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		at := place{namespace, node}
		c.mu.Lock()
		w := placeWork{place: at, keys: map[types.UID]guard.Key{}}
		known := c.places[at]
		asleep := known != nil && known.read && known.rests()
		if known != nil {
			for _, p := range known.marked {
				w.keys[p.uid] = guard.Key{Namespace: namespace, Name: p.name}
			}
		}
		c.mu.Unlock()
		there := false
		c.Store.Read(func(v *cluster.StoreView) { there = c.gather(v, &w) })
		if there && (!asleep || known.sum != w.sum) {
			out = append(out, w)
		}
	}
	return out
}

// nodesToLookAt lists the nodes on which the changed Services are crowded or have marks, and those where a mark is to go.
func (c *Controller) nodesToLookAt(namespace string, dirty map[string]bool) map[string]bool {
	nodes := map[string]bool{}
	for name := range dirty {
		c.Store.Read(func(v *cluster.StoreView) {
			if svc, ok := v.Service(guard.Key{Namespace: namespace, Name: name}); ok && c.wants(v, svc) {
				crowded(svc, nodes)
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

// wants reports whether a Service is to have keepers.
func (c *Controller) wants(v *cluster.StoreView, svc *guard.ServiceFacts) bool {
	return svc.External && !svc.Rotation.Nobody && (c.Wanted == nil || c.Wanted(v, svc))
}

// crowded adds the nodes on which a port of a Service has two or more endpoints.
func crowded(svc *guard.ServiceFacts, nodes map[string]bool) {
	for i := range svc.Ports {
		first := map[string]types.UID{}
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

// gather finds who serves at a place; false when there is nothing to do. A node that is leaving is left as it is: what
// becomes of its pods is decided by its claim, and a node that stays after all finds its marks where they were.
func (c *Controller) gather(v *cluster.StoreView, w *placeWork) bool {
	node, there := v.Node(w.node)
	if there && node.Leaving != guard.Stays {
		return false
	}
	if there {
		for svc := range v.ServicesOn(w.node) {
			if svc.Key.Namespace == w.namespace && c.wants(v, svc) && reaches(svc.Rotation.Seat(w.node)) {
				w.serve(svc)
			}
		}
	}
	w.uids = slices.Sorted(maps.Keys(w.keys))
	return len(w.uids) > 0
}

// reaches reports whether the balancer sends to a node or could.
func reaches(seat guard.Seat) bool { return seat.In != guard.No || seat.Eligible }

// serve adds the ports of a Service with who serves them.
func (w *placeWork) serve(svc *guard.ServiceFacts) {
	for i := range svc.Ports {
		s := guard.Serving{Service: svc.Key.Name, Unready: svc.PublishNotReady}
		for k := range svc.Ports[i].Endpoints {
			e := &svc.Ports[i].Endpoints[k]
			if e.Node != w.node || e.Pod == "" || e.PodKey.Namespace != w.namespace {
				continue
			}
			s.Pods = append(s.Pods, e.Pod)
			w.keys[e.Pod] = e.PodKey
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
