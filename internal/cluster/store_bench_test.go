package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func largeKey(i int) guard.Key {
	return guard.Key{Namespace: fmt.Sprintf("team-%02d", i%50), Name: fmt.Sprintf("service-%04d", i)}
}

func largePod(service, i int) types.UID {
	return types.UID(fmt.Sprintf("%08d-0000-4000-8000-%012d", service, i))
}

// largeStore is 5,000 nodes and 2,000 Services of policy Local with 150,000 endpoints, two of a Service to a node.
func largeStore() *cluster.Store {
	s := cluster.NewStore(hookset.New(hookset.Deps{}))
	for i := range largeNodes {
		s.SetNode(largeNode(i, nil))
	}
	port, name, yes := int32(8080), "http", true
	for i := range largeServices {
		key := largeKey(i)
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		svc.Spec = corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.96.0.1",
			Selector: map[string]string{"app": key.Name}, Ports: []corev1.ServicePort{{Name: name, Port: 80, NodePort: 30080}},
		}
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

// BenchmarkStoreEviction judges evictions in a large cluster: in peace, and while once in a hundred evictions a node changes so
// that every rotation is asked for anew. It reports the memory of the Store and the times of one judgement.
func BenchmarkStoreEviction(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := largeStore()
	for i := range largeServices {
		s.Read(func(v *cluster.StoreView) { v.Service(largeKey(i)) })
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	for name, every := range map[string]int{"peace": 0, "a node changes every 100": 100} {
		b.Run(name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				if every > 0 && i%every == 0 {
					s.SetNode(largeNode(i%largeNodes, map[string]string{"round": fmt.Sprint(i)}))
				}
				e := largeEviction(r)
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

// largeEviction is one of two pods of a Service on a node; the other one is kept.
func largeEviction(r *rand.Rand) guard.Eviction {
	i, k := r.IntN(largeServices), r.IntN(largeEndpoints/2)*2
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
