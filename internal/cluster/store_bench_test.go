package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

const (
	largeNodes     = 5000
	largeServices  = 2000
	largeEndpoints = 75 // of a Service
	sliceSize      = 25
)

func largeNode(i int, labels map[string]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprintf("node-%04d", i), "role": "edge"}}}
	for k, v := range labels {
		n.Labels[k] = v
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.%d.%d.1", i/250, i%250)}}
	return n
}

// node is one of the nodes, as the balancer's cloud has them.
func (b balancer) node(i int, labels map[string]string) *corev1.Node {
	n := largeNode(i, labels)
	if b.providerID != "" {
		n.Spec.ProviderID = fmt.Sprintf(b.providerID, i)
	}
	return n
}

func largeKey(i int) guard.Key {
	return guard.Key{Namespace: fmt.Sprintf("team-%02d", i%50), Name: fmt.Sprintf("service-%04d", i)}
}

func largePod(service, i int) types.UID {
	return types.UID(fmt.Sprintf("%08d-0000-4000-8000-%012d", service, i))
}

// balancer is what fronts the Services of a large cluster.
type balancer struct {
	providerID string // of every node, with its number; "" for none
	service    func(svc *corev1.Service, i int)
	objects    func(s *cluster.Store)
	one        bool // it sends to the first node with an endpoint only
}

var balancers = map[string]balancer{
	"no balancer": {service: func(*corev1.Service, int) {}, objects: func(*cluster.Store) {}},
	"AWS": {
		providerID: "aws:///eu-1a/i-%d",
		service: func(svc *corev1.Service, _ int) {
			svc.Spec.Type, svc.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
			svc.Annotations = map[string]string{"service.beta.kubernetes.io/aws-load-balancer-type": "nlb"}
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "x.elb.eu-1.amazonaws.com"}}
		},
		objects: func(*cluster.Store) {},
	},
	"MetalLB": {service: withAddress, objects: metalLB, one: true},
	"Calico": {service: withAddress, objects: func(s *cluster.Store) {
		set(s, "crd.projectcalico.org/v1", "BGPConfiguration", "default", map[string]any{"spec": map[string]any{
			"serviceLoadBalancerIPs": []any{map[string]any{"cidr": "198.18.0.0/16"}},
		}})
	}},
	"kube-router": {service: withAddress, objects: func(s *cluster.Store) {
		agents(s, corev1.Container{Args: []string{"--advertise-loadbalancer-ip"}}, map[string]string{"k8s-app": "kube-router"})
	}},
}

func withAddress(svc *corev1.Service, i int) {
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)}}
}

// metalLB announces every Service by L2, from nodes with a label, on each of which a speaker runs.
func metalLB(s *cluster.Store) {
	const version = "metallb.io/v1beta1"
	set(s, version, "IPAddressPool", "pool", map[string]any{"spec": map[string]any{"addresses": []any{"198.18.0.0/16"}}})
	set(s, version, "L2Advertisement", "edge", map[string]any{"spec": map[string]any{"nodeSelectors": []any{map[string]any{"matchLabels": map[string]any{"role": "edge"}}}}})
	for i := range largeServices {
		key, node := largeKey(i), largeNode(i*37%largeNodes, nil).Name
		set(s, version, "ServiceL2Status", fmt.Sprintf("l2-%04d", i), map[string]any{
			"status": map[string]any{"node": node, "serviceName": key.Name, "serviceNamespace": key.Namespace},
		})
	}
	agents(s, corev1.Container{}, map[string]string{"app.kubernetes.io/name": "metallb", "app.kubernetes.io/component": "speaker"})
}

// agents runs a pod of a DaemonSet on each node.
func agents(s *cluster.Store, c corev1.Container, labels map[string]string) {
	yes := true
	for i := range largeNodes {
		s.SetAgent(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "agents", Name: fmt.Sprintf("agent-%04d", i), Labels: maps.Clone(labels),
				OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent", Controller: &yes}},
			},
			Spec:   corev1.PodSpec{NodeName: largeNode(i, nil).Name, HostNetwork: true, Containers: []corev1.Container{c}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
}

func set(s *cluster.Store, version, kind, name string, fields map[string]any) {
	u := &unstructured.Unstructured{Object: fields}
	u.SetAPIVersion(version)
	u.SetKind(kind)
	u.SetNamespace("metallb-system")
	u.SetName(name)
	s.SetCustom(u.GroupVersionKind().GroupKind(), u)
}

// largeStore is 5,000 nodes and 2,000 Services of policy Local with 150,000 endpoints, two of a Service to a node.
func largeStore(front balancer) *cluster.Store {
	s := cluster.NewStore(hookset.New(hookset.Deps{}))
	for i := range largeNodes {
		s.SetNode(front.node(i, nil))
	}
	front.objects(s)
	port, name, yes := int32(8080), "http", true
	for i := range largeServices {
		key := largeKey(i)
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		svc.Spec = corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.96.0.1",
			Selector: map[string]string{"app": key.Name}, Ports: []corev1.ServicePort{{Name: name, Port: 80, NodePort: 30080}},
		}
		front.service(svc, i)
		s.SetService(svc)
		for k := 0; k < largeEndpoints; k += sliceSize {
			sl := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: key.Namespace, Name: fmt.Sprintf("%s-%d", key.Name, k), Labels: map[string]string{discoveryv1.LabelServiceName: key.Name}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
			}
			for j := range sliceSize {
				node := largeNode((i*37+(k+j)/2)%largeNodes, nil).Name
				sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, k+j)}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
					TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: key.Namespace, Name: fmt.Sprintf("%s-%d", key.Name, k+j), UID: largePod(i, k+j)},
				})
			}
			s.SetSlice(sl)
		}
	}
	return s
}

// BenchmarkStoreEviction judges evictions in a large cluster: in peace, and while a node changes once in a hundred evictions: a
// label, which any balancer may select nodes by, or what none reads. It reports the memory of the Store and the times of one
// judgement.
func BenchmarkStoreEviction(b *testing.B) {
	changes := map[string]func(n *corev1.Node, i int){
		"peace":         nil,
		"labels":        func(n *corev1.Node, i int) { n.Labels["round"] = fmt.Sprint(i) },
		"nothing of it": func(n *corev1.Node, i int) { n.Annotations = map[string]string{"example.com/round": fmt.Sprint(i)} },
	}
	for _, name := range slices.Sorted(maps.Keys(balancers)) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := largeStore(balancers[name])
		for i := range largeServices {
			s.Read(func(v *cluster.StoreView) { v.Service(largeKey(i)) })
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		for what, change := range changes {
			b.Run(name+"/"+what, func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				var took []time.Duration
				for i := 0; b.Loop(); i++ {
					if change != nil && i%100 == 0 {
						n := balancers[name].node(i%largeNodes, nil)
						change(n, i)
						s.SetNode(n)
					}
					e := largeEviction(r, balancers[name].one)
					start := time.Now()
					s.Read(func(v *cluster.StoreView) { judgeOne(b, e, v) })
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "store-MiB")
			})
		}
		runtime.KeepAlive(s)
	}
}

// largeEviction is one of two pods of a Service on a node, be it the first one; the other one is kept.
func largeEviction(r *rand.Rand, first bool) guard.Eviction {
	i, k := r.IntN(largeServices), r.IntN(largeEndpoints/2)*2
	if first {
		k = 0
	}
	key := largeKey(i)
	node := guard.NodeFacts{Name: largeNode((i*37+k/2)%largeNodes, nil).Name, Ready: true}
	pod := func(k int, keeper ...string) guard.PodFacts {
		return guard.PodFacts{
			Key: guard.Key{Namespace: key.Namespace, Name: fmt.Sprintf("%s-%d", key.Name, k)}, UID: largePod(i, k), Node: node.Name,
			Ready: true, Keeper: keeper, Relied: keeper, Labels: map[string]string{"app": key.Name},
		}
	}
	other := pod(k+1, key.Name)
	return guard.Eviction{Pod: pod(k), Node: &node, Others: map[types.UID]guard.PodFacts{other.UID: other}}
}

func judgeOne(b *testing.B, e guard.Eviction, v *cluster.StoreView) {
	if company := guard.Company(e, v); len(company) != 1 {
		b.Fatalf("company %v", company)
	}
	if got := guard.JudgeEviction(e, v); got.Reason != guard.KeeperStays {
		b.Fatalf("%+v", got)
	}
}
