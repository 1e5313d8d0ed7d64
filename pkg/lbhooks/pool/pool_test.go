package pool_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/pool"
)

func node(labels map[string]string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}}
	for _, c := range change {
		c(n)
	}
	return n
}

// Sources: cloud-provider controllers/service/controller.go, which reads the label's value; aws-load-balancer-controller,
// cloud-provider-azure and ingress-gce, which read its presence. None reads readiness or a cordon in these rules.
func TestBarred(t *testing.T) {
	claimed := func(n *corev1.Node) { n.Annotations = map[string]string{lbhooks.AnnotationDrain: "{}"} }
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	deleted := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }
	no, unknown, kept := lbhooks.No, lbhooks.Unknown, lbhooks.Seat{}.In
	label := func(value string) map[string]string { return map[string]string{lbhooks.ExcludeLabel: value} }
	for name, test := range map[string]struct {
		node              *corev1.Node
		byPresence, value any
	}{
		"plain":             {node(nil), kept, kept},
		"cordoned":          {node(nil, cordoned), kept, kept},
		"claimed":           {node(nil, claimed), kept, kept},
		"label true":        {node(label("true")), no, no},
		"label false":       {node(label("false")), no, kept},
		"label empty":       {node(label("")), no, no},
		"label of a drain":  {node(label("true"), claimed), unknown, unknown},
		"about to be gone":  {node(nil, deleted), no, no},
		"virtual":           {node(map[string]string{"type": "virtual-kubelet"}), no, no},
		"virtual, of drain": {node(map[string]string{"type": "virtual-kubelet", lbhooks.ExcludeLabel: "true"}, claimed), no, no},
	} {
		t.Run(name, func(t *testing.T) {
			for rule, want := range map[string]any{"presence": test.byPresence, "value": test.value} {
				excluded := lbhooks.ExcludedByPresence
				if rule == "value" {
					excluded = lbhooks.ExcludedByValue
				}
				seat, out := pool.Barred(test.node, excluded, "x")
				if out != (want != kept) || seat.In != want || seat.Eligible || out && seat.Why == "" {
					t.Errorf("by %s: %+v, %t; want %v", rule, seat, out, want)
				}
			}
		})
	}
}

// A pool of policy Local is narrowed by a check that is known; a node with a seat of its own keeps it.
func TestChecked(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "a"}}
	svc.Spec.Type, svc.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
	objects := &hooktest.Objects{AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(svc, discoveryv1.EndpointConditions{}, "n1", "barred", "selected-away")}}
	of := func(policy corev1.ServiceExternalTrafficPolicy, providerID string) map[string]any {
		svc.Spec.ExternalTrafficPolicy = policy
		r := lbhooks.Rotation{
			Shared: map[string]lbhooks.Seat{"barred": {In: lbhooks.No}}, Seats: map[string]lbhooks.Seat{"selected-away": {In: lbhooks.No}},
		}
		pool.Open(&r, "a member")
		pool.Checked(&r, "a member", svc, []*corev1.Node{{Spec: corev1.NodeSpec{ProviderID: providerID}}}, objects)
		got := map[string]any{"follows": r.Follows}
		for _, name := range []string{"n1", "n2", "barred", "selected-away"} {
			got[name] = r.Seat(name).In
		}
		return got
	}
	open := map[string]any{"follows": false, "n1": lbhooks.Yes, "n2": lbhooks.Yes, "barred": lbhooks.No, "selected-away": lbhooks.No}
	narrow := map[string]any{"follows": true, "n1": lbhooks.Yes, "n2": lbhooks.No, "barred": lbhooks.No, "selected-away": lbhooks.No}
	for name, test := range map[string]struct{ got, want map[string]any }{
		"policy Local, a check that is known": {of(corev1.ServiceExternalTrafficPolicyLocal, "gce://p/z/i"), narrow},
		"policy Local, none that is known":    {of(corev1.ServiceExternalTrafficPolicyLocal, "other://i"), open},
		"policy Cluster":                      {of(corev1.ServiceExternalTrafficPolicyCluster, "gce://p/z/i"), open},
	} {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
