package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/cluster/clustertest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/customkinds"
)

// The size of the large cluster. Of its Services the first in every five are of type LoadBalancer and policy Local, the
// second of type LoadBalancer and policy Cluster; the others are not reachable from outside.
const (
	largeNodes    = 5000
	largeServices = 10_000
	largeBudgets  = 8000
	writers       = 32
)

// large is a large cluster on a real API server. No controller runs: what the objects say is what the test wrote.
type large struct {
	*controlplane.Cluster

	client  kubernetes.Interface
	dynamic dynamic.Interface
	objects *clustertest.Cluster
}

func newLarge(b testing.TB) *large {
	b.Helper()
	return newLargeOf(b, largeNodes, largeServices, largeBudgets)
}

func newLargeOf(b testing.TB, nodes, services, budgets int) *large {
	b.Helper()
	objects := clustertest.Large(nodes, services, 1)
	objects.AddBudgets(budgets)
	return newLargeWith(b, objects)
}

// newLargeWith writes some objects, and gives the nodes room for further pods.
func newLargeWith(b testing.TB, objects *clustertest.Cluster) *large {
	b.Helper()
	for _, n := range objects.Nodes {
		n.Status.Allocatable = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("250"),
		}
	}
	l := &large{objects: objects, Cluster: controlplane.New(b, controlplane.Options{
		WithoutKwok: true, WithoutScheduler: true, WithoutControllerManager: true,
		APIServerFlags: []string{"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,LimitRanger,PodSecurity"},
	})}
	var err error
	if l.client, err = kubernetes.NewForConfig(cluster.ConfigFor(l.Config())); err != nil {
		b.Fatal(err)
	}
	if l.dynamic, err = dynamic.NewForConfig(l.Config()); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	l.create(b)
	b.Logf("%d nodes, %d Services, %d slices, %d budgets, %d pods written in %.0f s", len(l.objects.Nodes), len(l.objects.Services),
		len(l.objects.Slices), len(l.objects.Budgets), len(l.objects.Pods), seconds(time.Since(began)))
	return l
}

// create writes all objects, several at a time.
func (l *large) create(b testing.TB) {
	b.Helper()
	o, core, made := l.objects, l.client.CoreV1(), metav1.CreateOptions{}
	write(b, 100, func(ctx context.Context, i int) error {
		_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ns%d", i)}}, made)
		return err
	})
	write(b, len(o.Nodes), func(ctx context.Context, i int) error {
		_, err := core.Nodes().Create(ctx, created(o.Nodes[i]), made)
		return err
	})
	write(b, len(o.Services), func(ctx context.Context, i int) error {
		if isLocal(i) {
			return nil
		}
		return l.service(ctx, i)
	})
	// Each of these takes a healthCheckNodePort, and all of them contend for the one object that says which are taken.
	writeBy(b, 2, len(o.Services), func(ctx context.Context, i int) error {
		if !isLocal(i) {
			return nil
		}
		return l.service(ctx, i)
	})
	write(b, len(o.Budgets), func(ctx context.Context, i int) error { return l.budget(ctx, i) })
	uids := make([]types.UID, len(o.Pods))
	write(b, len(o.Pods), func(ctx context.Context, i int) (err error) {
		uids[i], err = l.pod(ctx, i)
		return err
	})
	nameEndpoints(o, uids)
	write(b, len(o.Slices), func(ctx context.Context, i int) error {
		_, err := l.client.DiscoveryV1().EndpointSlices(o.Slices[i].Namespace).Create(ctx, created(o.Slices[i]), made)
		return err
	})
}

// nameEndpoints has the slices name the pods by the UIDs that the API server gave them.
func nameEndpoints(o *clustertest.Cluster, uids []types.UID) {
	of := map[types.NamespacedName]types.UID{}
	for i, p := range o.Pods {
		of[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = uids[i]
	}
	for _, s := range o.Slices {
		for i := range s.Endpoints {
			ref := s.Endpoints[i].TargetRef
			if ref == nil {
				continue
			}
			if uid, ok := of[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]; ok {
				ref.UID = uid
			}
		}
	}
}

// created leaves the resourceVersion and the UID to the API server.
func created[T metav1.Object](o T) T {
	o.SetResourceVersion("")
	o.SetUID("")
	return o
}

// isLocal and isEntry tell which Services a balancer fronts.
func isLocal(i int) bool { return i%5 == 0 }
func isEntry(i int) bool { return i%5 == 1 }

// service writes one Service. The node ports of a cluster are too few for all: balancers here need none, and the rest is
// not reachable from outside.
func (l *large) service(ctx context.Context, i int) error {
	svc := created(l.objects.Services[i].DeepCopy())
	svc.Spec.Type, svc.Spec.ClusterIP, svc.Spec.ClusterIPs, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, "", nil, 0
	svc.Spec.ExternalTrafficPolicy = ""
	if isLocal(i) || isEntry(i) {
		no := false
		svc.Spec.Type, svc.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, &no
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		if isLocal(i) {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	services := l.client.CoreV1().Services(svc.Namespace)
	made, err := services.Create(ctx, svc, metav1.CreateOptions{})
	if err != nil || svc.Spec.Type == corev1.ServiceTypeClusterIP {
		return err
	}
	made.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address(i)}}
	_, err = services.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func address(i int) string { return fmt.Sprintf("198.18.%d.%d", i/250, i%250+1) }

func (l *large) budget(ctx context.Context, i int) error {
	pdb := created(l.objects.Budgets[i].DeepCopy())
	status := pdb.Status
	budgets := l.client.PolicyV1().PodDisruptionBudgets(pdb.Namespace)
	made, err := budgets.Create(ctx, pdb, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = status
	made.Status.ObservedGeneration = made.Generation
	_, err = budgets.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// pod writes one pod and returns its UID.
func (l *large) pod(ctx context.Context, i int) (types.UID, error) {
	pod := created(l.objects.Pods[i].DeepCopy())
	status := pod.Status
	pod.OwnerReferences[0].UID = "5f1c2b1e-0000-0000-0000-000000000000"
	pods := l.client.CoreV1().Pods(pod.Namespace)
	made, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if isFiller(pod) {
		return made.UID, nil
	}
	made.Status = status
	_, err = pods.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return made.UID, err
}

// metalLB adds MetalLB's objects: a pool, an advertisement from the nodes of some zones, and a status for every Service of type
// LoadBalancer.
func (l *large) metalLB(b testing.TB, zones int) {
	b.Helper()
	began := time.Now()
	if err := customkinds.Define(b.Context(), l.dynamic, customkinds.MetalLB()...); err != nil {
		b.Fatal(err)
	}
	objects := configuration(zones)
	for i, kind := range []customkinds.Kind{customkinds.MetalLB()[0], customkinds.MetalLB()[1]} {
		if _, err := l.dynamic.Resource(kind.GroupVersionResource).Namespace("ns0").Create(b.Context(), objects[i], metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	statuses := l.dynamic.Resource(metallb.L2Statuses).Namespace("ns0")
	write(b, largeServices, func(ctx context.Context, i int) error {
		if !isLocal(i) && !isEntry(i) {
			return nil
		}
		node, svc := announcer(i), l.objects.Services[i]
		u := object("ServiceL2Status", fmt.Sprintf("l2-%05d", i), map[string]any{})
		u.SetLabels(map[string]string{metallb.LabelNode: node, metallb.LabelServiceName: svc.Name, metallb.LabelServiceNamespace: svc.Namespace})
		made, err := statuses.Create(ctx, u, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Object["status"] = map[string]any{"node": node, "serviceName": svc.Name, "serviceNamespace": svc.Namespace}
		_, err = statuses.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
	b.Logf("MetalLB's objects written in %.0f s", seconds(time.Since(began)))
}

// configuration is a pool and an advertisement from the nodes of some of the three zones.
func configuration(zones int) []*unstructured.Unstructured {
	var names []any
	for i := range zones {
		names = append(names, fmt.Sprintf("z%d", i))
	}
	return []*unstructured.Unstructured{
		object("IPAddressPool", "pool", map[string]any{"addresses": []any{"198.18.0.0/16"}}),
		object("L2Advertisement", "from-some", map[string]any{"nodeSelectors": []any{map[string]any{
			"matchExpressions": []any{map[string]any{"key": "topology.kubernetes.io/zone", "operator": "In", "values": names}},
		}}}),
	}
}

// announcer is the node that announces a Service: of policy Local the one with its first endpoint.
func announcer(i int) string {
	if isLocal(i) {
		return fmt.Sprintf("n%d", 7*i%largeNodes)
	}
	return fmt.Sprintf("n%d", (i-1)%largeNodes)
}

func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "metallb.io/v1beta1", "kind": kind, "spec": spec}}
	u.SetName(name)
	return u
}

// write calls a function for every number below n, several at a time.
func write(b testing.TB, n int, one func(ctx context.Context, i int) error) {
	b.Helper()
	writeBy(b, writers, n, one)
}

func writeBy(b testing.TB, workers, n int, one func(ctx context.Context, i int) error) {
	b.Helper()
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(workers)
	for i := range n {
		group.Go(func() error { return one(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}
