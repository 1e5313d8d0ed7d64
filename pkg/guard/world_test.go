package guard

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world is an Index in memory, built by the tests.
type world struct {
	nodes      map[string]*NodeFacts
	services   map[Key]*ServiceFacts
	pods       []*corev1.Pod
	budgets    []*policyv1.PodDisruptionBudget
	daemonSets map[Key]bool
	workloads  []*Workload
}

var _ Index = (*world)(nil)

func newWorld(nodes ...string) *world {
	w := &world{nodes: map[string]*NodeFacts{}, services: map[Key]*ServiceFacts{}, daemonSets: map[Key]bool{}}
	for i, n := range nodes {
		w.nodes[n] = &NodeFacts{
			Name: n, Ready: true, Labels: map[string]string{corev1.LabelHostname: n},
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)},
		}
	}
	return w
}

// node changes a node.
func (w *world) node(name string, change func(*NodeFacts)) *world {
	change(w.nodes[name])
	return w
}

// pod adds a pod of ReplicaSet "rs" to a node; the UID is its name.
func (w *world) pod(node, name string, change ...func(*corev1.Pod)) *world {
	controller := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: name, UID: types.UID(name), Labels: map[string]string{"app": strings.TrimRight(name, "0123456789")},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", Controller: &controller}},
		},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(p)
	}
	w.pods = append(w.pods, p)
	return w
}

// service adds a NodePort Service of policy Local; each endpoint is "node", "node:RST" with R ready, S serving,
// T terminating, or "node:RST=pod" with the pod behind it.
func (w *world) service(name string, change func(*ServiceFacts), endpoints ...string) *world {
	port := Port{Name: "http", Protocol: corev1.ProtocolTCP, Family: corev1.IPv4Protocol}
	for i, s := range endpoints {
		port.Endpoints = append(port.Endpoints, parseEndpoint(s, i))
	}
	svc := &ServiceFacts{
		Key: Key{"a", name}, Type: corev1.ServiceTypeNodePort, External: true, NodePorts: []int32{30080}, Ports: []Port{port},
		Rotation: Rotation{Rest: Seat{In: Unknown, Eligible: true}},
	}
	if change != nil {
		change(svc)
	}
	w.services[svc.Key] = svc
	return w
}

func parseEndpoint(s string, i int) Endpoint {
	s, pod, _ := strings.Cut(s, "=")
	node, flags, found := strings.Cut(s, ":")
	if !found {
		flags = "RS"
	}
	e := Endpoint{
		Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), Port: 8080, Node: node, Pod: types.UID(pod),
		Ready: strings.Contains(flags, "R"), Serving: strings.Contains(flags, "S"), Terminating: strings.Contains(flags, "T"),
	}
	if pod != "" {
		e.PodKey = Key{"a", pod}
	}
	return e
}

// announced is the rotation of an announcer such as MetalLB: in on some nodes, able to enter others.
func announced(in []string, eligible ...string) func(*ServiceFacts) {
	return func(s *ServiceFacts) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.Rotation = Rotation{
			Hook: "test", Removal: RemovalLabel, Provable: true, Follows: true, FollowsServing: true,
			Seats: map[string]Seat{}, Rest: Seat{In: No},
		}
		for _, n := range eligible {
			s.Rotation.Seats[n] = Seat{In: No, Eligible: true}
		}
		for _, n := range in {
			s.Rotation.Seats[n] = Seat{In: Yes, Eligible: true}
		}
	}
}

func all(changes ...func(*ServiceFacts)) func(*ServiceFacts) {
	return func(s *ServiceFacts) {
		for _, c := range changes {
			c(s)
		}
	}
}

func (w *world) plan(flags Flags, nodes ...string) DrainPlan {
	if flags.GracePeriod == 0 {
		flags.GracePeriod = -1
	}
	return Plan(w, Request{Nodes: nodes, Run: "me", Flags: flags})
}

func (w *world) Node(name string) (*NodeFacts, bool) { n, ok := w.nodes[name]; return n, ok }

func (w *world) Nodes() iter.Seq[*NodeFacts] {
	return func(yield func(*NodeFacts) bool) {
		for _, n := range slices.Sorted(maps.Keys(w.nodes)) {
			if !yield(w.nodes[n]) {
				return
			}
		}
	}
}

func (w *world) Service(k Key) (*ServiceFacts, bool) { s, ok := w.services[k]; return s, ok }

func (w *world) Services() iter.Seq[*ServiceFacts] {
	return func(yield func(*ServiceFacts) bool) {
		for _, k := range slices.SortedFunc(maps.Keys(w.services), Key.Compare) {
			if !yield(w.services[k]) {
				return
			}
		}
	}
}

func (w *world) ServicesOn(node string) iter.Seq[*ServiceFacts] {
	return func(yield func(*ServiceFacts) bool) {
		for s := range w.Services() {
			on := slices.ContainsFunc(s.Ports, func(p Port) bool {
				return slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Node == node })
			})
			if on && !yield(s) {
				return
			}
		}
	}
}

func (w *world) Pods(node string) iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		for _, p := range w.pods {
			if p.Spec.NodeName == node && !yield(p) {
				return
			}
		}
	}
}

func (w *world) Pod(uid types.UID) (*corev1.Pod, bool) {
	i := slices.IndexFunc(w.pods, func(p *corev1.Pod) bool { return p.UID == uid })
	if i < 0 {
		return nil, false
	}
	return w.pods[i], true
}

func (w *world) Budgets(ns string) iter.Seq[*policyv1.PodDisruptionBudget] {
	return func(yield func(*policyv1.PodDisruptionBudget) bool) {
		for _, b := range w.budgets {
			if b.Namespace == ns && !yield(b) {
				return
			}
		}
	}
}

func (w *world) DaemonSetExists(k Key) bool { return w.daemonSets[k] }

func (w *world) Workloads(ns string) iter.Seq[*Workload] {
	return func(yield func(*Workload) bool) {
		for _, x := range w.workloads {
			if x.Key.Namespace == ns && !yield(x) {
				return
			}
		}
	}
}

// codes lists "Code:Severity[nodes]" of findings, for comparison.
func codes(findings []Finding) []string {
	out := []string{}
	for _, f := range findings {
		s := string(f.Code) + ":" + string(f.Severity)
		if len(f.Nodes) > 0 {
			s += "[" + strings.Join(f.Nodes, " ") + "]"
		}
		if subject := f.Pod + f.Budget; subject != "" {
			s += " " + subject
		}
		out = append(out, s)
	}
	return out
}

func sleeps(preStop, grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: preStop}}}
	}
}

func checked(s *ServiceFacts) {
	s.Rotation.Hook, s.Rotation.Removal = "health-check", RemovalHealthCheck
	s.Rotation.HealthCheck = &HealthCheck{Interval: 10 * time.Second, Timeout: 6 * time.Second, Unhealthy: 2, Source: "test"}
}
