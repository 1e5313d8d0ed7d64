package bench

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

// What is promised of the gate on the large cluster.
const (
	gateReady  = time.Minute           // from its start on
	gateAdded  = 10 * time.Millisecond // to the answers of a webhook that does nothing, the slowest of a hundred of each
	gateRatio  = 1.1                   // of an eviction through a webhook that does nothing
	gateMemory = 300 << 20
)

// gateSize is how large a cluster is, and how much is measured in it.
type gateSize struct {
	nodes, services int  // one Service in five is of policy Local
	evictions       int  // of each kind
	answers         int  // of the gate, past the API server
	promised        bool // whether what is promised has to hold
}

var (
	gateFull  = gateSize{nodes: largeNodes, services: largeServices, evictions: 200, answers: 1000, promised: true}
	gateSmoke = gateSize{nodes: 50, services: 100, evictions: 10, answers: 50} // with -short: shows that it works, and nothing else
)

// The namespaces whose evictions nobody reviews, a webhook that does nothing, and the gate.
const (
	unasked = "evict-plain"
	nothing = "evict-nothing"
	gated   = "evict-gated"
)

// BenchmarkGate evicts pods of the large cluster through nothing, through a webhook that does nothing, and through the gate, in
// turn and one at a time. The gate allows each: another pod of the node is kept, so that it reads two pods and a node.
//
// What the gate adds to an answer is measured past the API server, which takes longer for an eviction than both webhooks and
// varies by more: the gate and the webhook that does nothing are asked the same in turn, over connections that stand. Both
// times hold the connection, the decoding of a review and the wait of this process for a processor; their difference is
// the gate's own work and its reads of the API server.
func BenchmarkGate(b *testing.B) {
	size := gateFull
	if testing.Short() {
		size = gateSmoke
	}
	l := newLargeOf(b, size.nodes, size.services, 0)
	l.objects = nil // they are on the server now
	kinds := []string{unasked, nothing, gated}
	for _, namespace := range kinds {
		l.couples(b, namespace, size.evictions+1) // the last one stays, for questions to the gate itself
	}
	idle := allowing(b)
	l.webhook(b, nothing, idle)
	g := l.startGate(b)
	l.settle(b, g, len(kinds)*(size.evictions+1), size.evictions)
	b.Logf("ready after %.1f s, %d MiB at most when it has settled", seconds(g.ready), g.memory(b)>>20)
	took := map[string][]time.Duration{}
	for i := range size.evictions {
		for _, namespace := range kinds {
			took[namespace] = append(took[namespace], l.evict(b, namespace, i))
		}
	}
	var answers, idleAnswers []time.Duration
	review := g.review(b, goes(size.evictions))
	for range size.answers {
		answers = append(answers, g.answer(b, g.url, review))
		idleAnswers = append(idleAnswers, g.answer(b, *idle.URL, review))
	}
	middle := map[string]float64{}
	for namespace, all := range took {
		middle[namespace] = median(all, seconds) * 1000
		b.ReportMetric(middle[namespace], namespace+"-p50-ms")
		b.ReportMetric(percentile(all, 99).Seconds()*1000, namespace+"-p99-ms")
	}
	added := func(n int) time.Duration { return percentile(answers, n) - percentile(idleAnswers, n) }
	ratio, memory := middle[gated]/middle[nothing], g.memory(b)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(percentile(answers, 99).Seconds()*1000, "answer-p99-ms")
	b.ReportMetric(added(50).Seconds()*1000, "added-p50-ms")
	b.ReportMetric(added(99).Seconds()*1000, "added-p99-ms")
	b.ReportMetric(seconds(g.ready), "ready-s")
	b.ReportMetric(float64(memory>>20), "MiB")
	if !size.promised {
		return
	}
	if ratio > gateRatio {
		b.Errorf("an eviction through the gate took %.2f of one through a webhook that does nothing, want %.1f at most", ratio, gateRatio)
	}
	if slowest := added(99); slowest > gateAdded {
		b.Errorf("the slowest answers of a hundred took %s more than those of a webhook that does nothing, want %s at most", slowest, gateAdded)
	}
	if g.ready > gateReady {
		b.Errorf("it was ready after %s, want %s at most", g.ready, gateReady)
	}
	if memory > gateMemory {
		b.Errorf("it took %d MiB, want %d at most", memory>>20, gateMemory>>20)
	}
}

func percentile(of []time.Duration, n int) time.Duration {
	of = slices.Clone(of)
	slices.Sort(of)
	return of[(len(of)-1)*n/100]
}

func goes(i int) string { return fmt.Sprintf("goes-%d", i) }
func kept(i int) string { return fmt.Sprintf("kept-%d", i) }

// couples makes a Service of policy Local with two pods on each of some nodes, one of which is kept.
func (l *large) couples(b *testing.B, namespace string, n int) {
	b.Helper()
	ctx, made := b.Context(), metav1.CreateOptions{}
	_, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, made)
	if err != nil {
		b.Fatal(err)
	}
	no := false
	_, err = l.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: &no, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}, made)
	if err != nil {
		b.Fatal(err)
	}
	write(b, n, func(ctx context.Context, i int) error { return l.couple(ctx, namespace, i) })
}

// couple makes the two pods of one node, and a slice of them.
func (l *large) couple(ctx context.Context, namespace string, i int) error {
	made, port, yes := metav1.CreateOptions{}, int32(8080), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port}},
	}
	node := fmt.Sprintf("n%d", i)
	for k, name := range []string{goes(i), kept(i)} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}},
		}
		if name == kept(i) {
			pod.Annotations = map[string]string{guard.AnnotationKeeper: "web"}
		}
		pod, err := l.client.CoreV1().Pods(namespace).Create(ctx, pod, made)
		if err != nil {
			return err
		}
		ip := fmt.Sprintf("10.255.%d.%d", i/100, i%100*2+k+1)
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		}
		if _, err := l.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			return err
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name, UID: pod.UID},
		})
	}
	_, err := l.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, made)
	return err
}

// evict evicts a pod that may go. No kubelet waits for it to end.
func (l *large) evict(b *testing.B, namespace string, i int) time.Duration {
	b.Helper()
	now := int64(0)
	began := time.Now()
	err := l.client.PolicyV1().Evictions(namespace).Evict(b.Context(), &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: goes(i)},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &now},
	})
	took := time.Since(began)
	if err != nil {
		b.Fatalf("%s: %v", namespace, err)
	}
	return took
}

// settle waits until evictions are the gate's to answer, and until it has found all keepers: from then on it is at rest.
func (l *large) settle(b *testing.B, g *gate, keepers, of int) {
	b.Helper()
	err := controlplane.Poll(b.Context(), gateReady, "the gate is asked", func(ctx context.Context) (bool, string, error) {
		err := l.client.PolicyV1().RESTClient().Post().AbsPath("/api/v1/namespaces", gated, "pods", kept(of), "eviction").MaxRetries(0).
			Body(&policyv1.Eviction{
				TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
				ObjectMeta:    metav1.ObjectMeta{Namespace: gated, Name: kept(of)},
				DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
			}).Do(ctx).Error()
		return apierrors.IsTooManyRequests(err), fmt.Sprint(err), nil
	})
	if err != nil {
		b.Fatal(err)
	}
	want := regexp.MustCompile(fmt.Sprintf(`(?m)^safedrain_gate_keepers %d$`, keepers))
	err = controlplane.Poll(b.Context(), gateReady, "the keepers are found", func(ctx context.Context) (bool, string, error) {
		_, text, err := g.get(ctx, g.metrics)
		return want.MatchString(text), strings.Join(regexp.MustCompile(`(?m)^safedrain_gate_.*$`).FindAllString(text, -1), "\n"), err
	})
	if err != nil {
		b.Fatal(err)
	}
}

// webhook registers one for the evictions of a namespace; without a certificate somebody else adds it.
func (l *large) webhook(b *testing.B, namespace string, config admissionregistrationv1.WebhookClientConfig) {
	b.Helper()
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNoneOnDryRun
	_, err := l.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(b.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "evict.safedrain.dev", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail, SideEffects: &none, ClientConfig: config,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
}

// allowing is a webhook that does nothing.
func allowing(b *testing.B) admissionregistrationv1.WebhookClientConfig {
	b.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if json.NewDecoder(req.Body).Decode(&review) != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(&review)
	}))
	b.Cleanup(server.Close)
	return admissionregistrationv1.WebhookClientConfig{
		URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
}
