package surge

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const ns = "shop"

// world is a cluster of three nodes: on n1 is the only pod of Deployment shop/web, behind a Local Service. Controllers do
// nothing in it: objects are as they were put there, and as they are written.
type world struct {
	nodes      []*corev1.Node
	pods       []*corev1.Pod // the first is that of web
	deployment *appsv1.Deployment
	scalers    []*autoscalingv2.HorizontalPodAutoscaler
	scaled     *unstructured.Unstructured // of KEDA
	quotas     []*corev1.ResourceQuota
	claims     []*corev1.PersistentVolumeClaim
}

func newWorld() *world {
	w := &world{}
	for _, name := range []string{"n1", "n2", "n3"} {
		w.nodes = append(w.nodes, &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	w.deployment = &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web", UID: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
		Status: appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1},
	}
	w.pod("web-1", "n1")
	return w
}

// pod adds a Ready pod of the Deployment.
func (w *world) pod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"},
			CreationTimestamp: metav1.NewTime(time.Date(2026, 12, 1, 10, 0, len(w.pods), 0, time.UTC)),
			OwnerReferences:   []metav1.OwnerReference{ownedBy("apps/v1", "ReplicaSet", "web-abc")},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(p)
	}
	w.pods = append(w.pods, p)
	return p
}

func ownedBy(version, kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: types.UID(name), Controller: ptr.To(true)}
}

// scaler adds an autoscaler of the Deployment with a least, 0 for none, and a most.
func (w *world) scaler(name string, least, most int32) *autoscalingv2.HorizontalPodAutoscaler {
	h := &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: most,
		},
	}
	if least > 0 {
		h.Spec.MinReplicas = &least
	}
	w.scalers = append(w.scalers, h)
	return h
}

// keda adds a ScaledObject and the autoscaler that KEDA makes of it, which bears its labels.
func (w *world) keda(labels map[string]string) {
	w.scaled = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{"namespace": ns, "name": "web"},
		"spec":     map[string]any{"scaleTargetRef": map[string]any{"name": "web"}},
	}}
	w.scaled.SetLabels(labels)
	h := w.scaler("keda-hpa-web", 1, 100)
	h.OwnerReferences, h.Labels = []metav1.OwnerReference{ownedBy("keda.sh/v1alpha1", "ScaledObject", "web")}, labels
}

func (w *world) quota(name string, hard, used string, scopes ...corev1.ResourceQuotaScope) {
	w.quotas = append(w.quotas, &corev1.ResourceQuota{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.ResourceQuotaSpec{Scopes: scopes},
		Status: corev1.ResourceQuotaStatus{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(hard)}, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(used)},
		},
	})
}

func (w *world) set() *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web-abc", UID: "web-abc", OwnerReferences: []metav1.OwnerReference{ownedBy("apps/v1", "Deployment", "web")}},
	}
}

// snapshot is the cluster as a plan reads it.
func (w *world) snapshot(t *testing.T) *cluster.Snapshot {
	t.Helper()
	web := func(m *metav1.ObjectMeta) { m.Namespace, m.Name = ns, "web" }
	svc := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
		Selector: map[string]string{"app": "web"}, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
	}}
	web(&svc.ObjectMeta)
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](80), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	web(&slice.ObjectMeta)
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	objects := []runtime.Object{svc, slice, w.deployment, w.set()}
	for i, p := range w.pods {
		objects = append(objects, p)
		if p.Labels["app"] == "web" {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{"10.0.0." + string(rune('1'+i))}, NodeName: &p.Spec.NodeName,
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: p.Name, UID: p.UID},
			})
		}
	}
	for _, n := range w.nodes {
		objects = append(objects, n)
	}
	for _, c := range w.claims {
		objects = append(objects, c)
	}
	for _, h := range w.scalers {
		objects = append(objects, h)
	}
	s, err := cluster.FromObjects(objects...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bringer has clients that keep objects and write patches to them, and nothing more.
func (w *world) bringer() *Bringer {
	typed := []runtime.Object{w.deployment, w.set()}
	var raw []runtime.Object
	add := func(o runtime.Object) {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			panic(err)
		}
		raw = append(raw, &unstructured.Unstructured{Object: m})
	}
	add(w.deployment)
	for _, p := range w.pods {
		typed = append(typed, p)
	}
	for _, h := range w.scalers {
		typed = append(typed, h)
		add(h)
	}
	for _, q := range w.quotas {
		typed = append(typed, q)
	}
	if w.scaled != nil {
		raw = append(raw, w.scaled)
	}
	lists := map[schema.GroupVersionResource]string{}
	for name, k := range kinds {
		lists[k.resource] = name + "List"
	}
	return &Bringer{
		Client: fake.NewClientset(typed...), Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, raw...),
		Clock: clock.RealClock{}, Run: "run-1",
	}
}

// noBalancer matches no Service.
type noBalancer struct{}

func (noBalancer) Match(*corev1.Service, lbhooks.Objects) lbhooks.Rotation {
	return lbhooks.Rotation{Removal: lbhooks.RemovalNone, Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true}}
}

func (noBalancer) Descriptions() []lbhooks.Description { return nil }

// find asks for the surges of a drain of n1.
func (w *world) find(t *testing.T, from Source, scope Scope) []Found {
	t.Helper()
	snap := w.snapshot(t)
	ix := snap.Index(noBalancer{}, []string{"n1"})
	plan := guard.Plan(ix, guard.Request{Nodes: []string{"n1"}, Flags: guard.Flags{Force: true}})
	found, err := Find(t.Context(), from, Question{Plan: &plan, Index: ix, Places: snap.Placement(), Scope: scope, Run: "run-1"})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
