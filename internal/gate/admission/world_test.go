package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

// world is a cluster as the gate sees it: a Store, and the API server behind it, with what is wrong with it.
type world struct {
	store *cluster.Store
	pods  map[string]*corev1.Pod
	nodes map[string]*corev1.Node
	// fail, if set, answers a read in place of the API server: what is "pod NAME" or "node NAME".
	fail func(ctx context.Context, what string) error

	mu    sync.Mutex
	reads int
	noted []string
}

func newWorld() *world {
	return &world{store: cluster.NewStore(hookset.New(hookset.Deps{})), pods: map[string]*corev1.Pod{}, nodes: map[string]*corev1.Node{}}
}

func (w *world) read(ctx context.Context, what string) error {
	w.mu.Lock()
	w.reads++
	w.mu.Unlock()
	if w.fail == nil {
		return nil
	}
	return w.fail(ctx, what)
}

// Pod reads a pod.
func (w *world) Pod(ctx context.Context, _, name string) (*corev1.Pod, error) {
	if err := w.read(ctx, "pod "+name); err != nil {
		return nil, err
	}
	if p := w.pods[name]; p != nil {
		return p, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

// Node reads a node.
func (w *world) Node(ctx context.Context, name string) (*corev1.Node, error) {
	if err := w.read(ctx, "node "+name); err != nil {
		return nil, err
	}
	if n := w.nodes[name]; n != nil {
		return n, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
}

// Note takes a note.
func (w *world) Note(node string) { w.noted = append(w.noted, node) }

func (w *world) node(name string, change ...func(*corev1.Node)) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(n)
	}
	w.nodes[name] = n
	w.store.SetNode(n.DeepCopy())
}

func gateOff(n *corev1.Node) { n.Annotations[guard.AnnotationGate] = "off" }

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func (w *world) pod(name, node string, keeper ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "s"}, Annotations: map[string]string{}}}
	p.Spec.NodeName = node
	p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.244.0.9"
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, k := range keeper {
		p.Annotations[guard.AnnotationKeeper] = k
	}
	w.pods[name] = p
	return p
}

// service is a NodePort Service of policy Local whose slices show the pods, each "pod@node".
func (w *world) service(name string, annotations map[string]string, endpoints ...[2]string) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: name, Annotations: annotations}}
	svc.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.96.0.1",
		Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
	}
	w.store.SetService(svc)
	port, text, yes := int32(8080), "", true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "e", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &text, Port: &port}},
	}
	for i, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.244.0.%d", i+1)}, NodeName: &e[1], Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "e", Name: e[0], UID: types.UID(e[0])},
		})
	}
	w.store.SetSlice(slice)
}

// edge is what most tests need: the pods p and k on n1, and o on n2, behind the Service s.
func edge(keeper ...string) *world {
	w := newWorld()
	w.node("n1")
	w.node("n2")
	w.pod("p", "n1")
	w.pod("k", "n1", keeper...)
	w.pod("o", "n2")
	w.service("s", nil, [2]string{"p", "n1"}, [2]string{"k", "n1"}, [2]string{"o", "n2"})
	return w
}

// evictions are the gate on the world.
func (w *world) evictions(mode Mode) *Evictions {
	return &Evictions{Store: w.store, Live: w, Mode: mode, Synced: func() bool { return true }, Refusals: w}
}

// review is the body of a review of an eviction; change may spoil it.
func review(pod string, change ...func(*admissionv1.AdmissionReview)) []byte {
	r := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "u", Operation: admissionv1.Create, Namespace: "e", Name: pod, SubResource: "eviction",
			Kind:     metav1.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		},
	}
	r.Request.Object.Raw = []byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + pod + `"}}`)
	for _, c := range change {
		c(r)
	}
	body, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return body
}

// post sends a body to a handler and returns its status and its answer.
func post(h http.Handler, body []byte, change ...func(*http.Request)) (int, *admissionv1.AdmissionResponse) {
	req := httptest.NewRequest(http.MethodPost, "/evict?timeout=30s", bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for _, c := range change {
		c(req)
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, req)
	var r admissionv1.AdmissionReview
	if json.Unmarshal(answer.Body.Bytes(), &r) != nil {
		return answer.Code, nil
	}
	return answer.Code, r.Response
}

// ask posts the eviction of a pod.
func (w *world) ask(t *testing.T, mode Mode, pod string, change ...func(*admissionv1.AdmissionReview)) *admissionv1.AdmissionResponse {
	t.Helper()
	code, r := post(w.evictions(mode).Handler(Serving{Deadline: time.Minute}), review(pod, change...))
	if code != http.StatusOK || r == nil || r.UID != "u" {
		t.Fatalf("status %d, response %+v", code, r)
	}
	return r
}
