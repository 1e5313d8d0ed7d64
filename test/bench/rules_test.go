package bench

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/cluster/clustertest"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
)

// BenchmarkRules judges the drain of one node of the large cluster with everything in memory: what a plan takes beside its
// lists. MetalLB announces half of the Services, from some of the nodes.
func BenchmarkRules(b *testing.B) {
	for _, zones := range []int{0, 1, 3} {
		name := "no MetalLB"
		if zones > 0 {
			name = fmt.Sprintf("MetalLB in %d of 3 zones", zones)
		}
		b.Run(name, func(b *testing.B) {
			s, err := cluster.FromObjects(inMemory(zones)...)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				nodes := []string{"n0"}
				plan := guard.Plan(s.Index(hookset.New(hookset.Deps{}), nodes), guard.Request{Nodes: nodes})
				if len(plan.Services) == 0 || zones > 0 && len(plan.Withdraw) == 0 {
					b.Fatalf("%d Services, %d entries: nothing was judged", len(plan.Services), len(plan.Withdraw))
				}
			}
		})
	}
}

// inMemory is the objects of the large cluster.
func inMemory(zones int) []runtime.Object {
	c := clustertest.Large(largeNodes, largeServices, 1)
	c.AddBudgets(largeBudgets)
	for i, svc := range c.Services {
		svc.Spec.ExternalTrafficPolicy, svc.Spec.Type = "", corev1.ServiceTypeClusterIP
		if isLocal(i) || isEntry(i) {
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyCluster
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address(i)}}
		}
		if isLocal(i) {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	objects := c.Objects()
	if zones == 0 {
		return objects
	}
	for _, u := range configuration(zones) {
		u.SetNamespace("ns0")
		objects = append(objects, u)
	}
	for i, svc := range c.Services {
		if isLocal(i) || isEntry(i) {
			u := object("ServiceL2Status", fmt.Sprintf("l2-%05d", i), map[string]any{})
			u.SetNamespace("ns0")
			u.SetLabels(map[string]string{metallb.LabelNode: announcer(i), metallb.LabelServiceName: svc.Name, metallb.LabelServiceNamespace: svc.Namespace})
			u.Object["status"] = map[string]any{"node": announcer(i), "serviceName": svc.Name, "serviceNamespace": svc.Namespace}
			objects = append(objects, u)
		}
	}
	return objects
}
