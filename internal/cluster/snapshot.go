package cluster

import (
	"cmp"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// Snapshot holds listed objects, trimmed and indexed. It does not change once it is built, so any number of goroutines
// may read it; what it returns must not be modified.
type Snapshot struct {
	nodes    []*corev1.Node // sorted by name
	facts    []guard.NodeFacts
	nodeAt   map[string]int
	services []served // sorted by key: those that kube-proxy serves
	at       map[guard.Key]int
	raw      map[guard.Key]*corev1.Service // every Service
	onNode   map[string][]int32            // services with an endpoint on a node, sorted
	skipped  guard.Skipped

	podsOn     map[string][]*corev1.Pod
	pods       map[types.UID]*corev1.Pod
	agents     map[string][]*corev1.Pod // live: by label selector; nil when every pod is at hand
	budgets    map[string][]*policyv1.PodDisruptionBudget
	daemonSets map[guard.Key]*appsv1.DaemonSet // nil when they are not known
	workloads  map[string][]*guard.Workload
	scalable   scalable
	custom     map[schema.GroupKind][]*unstructured.Unstructured

	holds map[string]*guard.HoldFacts // by namespace; nil where nothing is to be held

	places   *places            // from files: where volumes and namespaces are
	placing  *placement.Cluster // live: what was read to place pods; nil when nothing was
	placedBy string             // live: what more than usual was read for it, and why; "" when nothing was

	counts   map[string]int // objects by kind
	missing  []Verb
	unserved map[schema.GroupKind]bool // live: kinds that a hook reads and this cluster does not have

	mu       sync.Mutex
	selected map[string][]*corev1.Pod // from files: agents by label selector
}

// served is a Service that kube-proxy serves, with its slices.
type served struct {
	object *corev1.Service
	slices []*slice
	shared []guard.Key
}

// listing is what a reader fills, kind by kind; seal turns it into a Snapshot. Live, each LIST owns one field.
type listing struct {
	nodes        []*corev1.Node
	services     []*corev1.Service
	slices       []*slice
	sliceCount   int
	pods         []*corev1.Pod
	agents       map[string][]*corev1.Pod
	budgets      []*policyv1.PodDisruptionBudget
	knownDaemons map[guard.Key]*appsv1.DaemonSet // those of an earlier load, where they were not listed again
	daemonSets   []*appsv1.DaemonSet
	knowsDaemons bool // the DaemonSets were read, be it none
	deployments  []*appsv1.Deployment
	statefulSets []*appsv1.StatefulSet
	replicaSets  []*appsv1.ReplicaSet                     // from files
	autoscalers  []*autoscalingv2.HorizontalPodAutoscaler // from files, and for an audit
	policies     []*networkingv1.NetworkPolicy
	places       places // from files
	custom       map[schema.GroupKind][]*unstructured.Unstructured
	others       map[string]int // kinds that were counted and not kept
	missing      []Verb
	unserved     map[schema.GroupKind]bool
}

// seal sorts and indexes a listing.
func (l *listing) seal() *Snapshot {
	s := &Snapshot{
		nodes: l.nodes, agents: l.agents, custom: l.custom, missing: l.missing, unserved: l.unserved,
		selected: map[string][]*corev1.Pod{},
	}
	s.sealNodes()
	s.sealServices(l)
	s.sealPods(l)
	s.sealWorkloads(l)
	s.sealScalable(l)
	s.sealHolds(l)
	s.budgets = map[string][]*policyv1.PodDisruptionBudget{}
	for _, b := range l.budgets {
		s.budgets[b.Namespace] = append(s.budgets[b.Namespace], b)
	}
	for _, of := range s.budgets {
		slices.SortFunc(of, func(a, b *policyv1.PodDisruptionBudget) int { return cmp.Compare(a.Name, b.Name) })
	}
	for _, of := range s.custom {
		slices.SortFunc(of, func(a, b *unstructured.Unstructured) int {
			return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
		})
	}
	s.places = &l.places
	s.missing = distinct(s.missing)
	s.count(l)
	return s
}

func (s *Snapshot) sealNodes() {
	slices.SortFunc(s.nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	s.facts = make([]guard.NodeFacts, len(s.nodes))
	s.nodeAt = make(map[string]int, len(s.nodes))
	for i, n := range s.nodes {
		s.nodeAt[n.Name] = i
		s.facts[i] = nodeFacts(n)
	}
}

func (s *Snapshot) sealServices(l *listing) {
	s.raw = make(map[guard.Key]*corev1.Service, len(l.services))
	s.at = make(map[guard.Key]int, len(l.services))
	slices.SortFunc(l.services, func(a, b *corev1.Service) int { return serviceKey(a).Compare(serviceKey(b)) })
	for _, svc := range l.services {
		key := serviceKey(svc)
		s.raw[key] = svc
		if !countSkipped(svc, &s.skipped) {
			s.at[key] = len(s.services)
			s.services = append(s.services, served{object: svc})
		}
	}
	slices.SortFunc(l.slices, func(a, b *slice) int {
		return cmp.Or(a.service.Compare(b.service), cmp.Compare(a.name, b.name))
	})
	for _, sl := range l.slices {
		if i, ok := s.at[sl.service]; ok {
			s.services[i].slices = append(s.services[i].slices, sl)
		}
	}
	s.sealPlaces()
	s.sealShared()
}

// sealPlaces finds for each node the Services that have an endpoint there, and under "" those with one that names no
// node.
func (s *Snapshot) sealPlaces() {
	s.onNode = make(map[string][]int32, len(s.nodes))
	for i := range s.services {
		for _, sl := range s.services[i].slices {
			if sl.headless {
				continue
			}
			for j := range sl.endpoints {
				node := sl.endpoints[j].node
				on := s.onNode[node]
				if len(on) == 0 || on[len(on)-1] != int32(i) {
					s.onNode[node] = append(on, int32(i))
				}
			}
		}
	}
}

// sealShared finds the Services that have a load balancer address in common.
func (s *Snapshot) sealShared() {
	byAddress := map[string][]int{}
	for i := range s.services {
		for _, in := range s.services[i].object.Status.LoadBalancer.Ingress {
			if in.IP == "" {
				continue
			}
			if of := byAddress[in.IP]; len(of) == 0 || of[len(of)-1] != i {
				byAddress[in.IP] = append(of, i)
			}
		}
	}
	for _, of := range byAddress {
		for _, i := range of {
			for _, j := range of {
				if i != j {
					s.services[i].shared = append(s.services[i].shared, serviceKey(s.services[j].object))
				}
			}
		}
	}
	for i := range s.services {
		slices.SortFunc(s.services[i].shared, guard.Key.Compare)
		s.services[i].shared = slices.Compact(s.services[i].shared)
	}
}

func (s *Snapshot) sealPods(l *listing) {
	s.podsOn = map[string][]*corev1.Pod{}
	s.pods = make(map[types.UID]*corev1.Pod, len(l.pods))
	for _, of := range l.agents {
		for _, p := range of {
			s.pods[p.UID] = p
		}
		sortPods(of)
	}
	for _, p := range l.pods {
		if p.UID != "" {
			s.pods[p.UID] = p
		}
		s.podsOn[p.Spec.NodeName] = append(s.podsOn[p.Spec.NodeName], p)
	}
	for _, of := range s.podsOn {
		sortPods(of)
	}
}

func sortPods(pods []*corev1.Pod) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// serviceKey returns the key of a Service.
func serviceKey(svc *corev1.Service) guard.Key {
	return guard.Key{Namespace: svc.Namespace, Name: svc.Name}
}
