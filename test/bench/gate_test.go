package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

// What is promised of the gate on the large cluster.
const (
	gateReady  = time.Minute // from its start on
	gateAdded  = 10 * time.Millisecond
	gateRatio  = 1.1 // of an eviction through a webhook that does nothing
	gateMemory = 300 << 20
	gateRounds = 300
)

// The namespaces whose evictions nobody reviews, a webhook that does nothing, and the gate.
const (
	unasked = "evict-plain"
	nothing = "evict-nothing"
	gated   = "evict-gated"
)

// BenchmarkGate evicts pods of the large cluster, as a dry run, through nothing, through a webhook that does nothing, and through
// the gate, in turn. It allows each: another pod of the node is kept, so that it reads two pods and a node.
func BenchmarkGate(b *testing.B) {
	l := newLarge(b)
	l.objects.Nodes, l.objects.Slices, l.objects.Pods, l.objects.Budgets = nil, nil, nil, nil // they are on the server now
	for _, namespace := range []string{unasked, nothing, gated} {
		l.couple(b, namespace)
	}
	l.webhook(b, nothing, allowing(b))
	g := l.startGate(b)
	b.Logf("ready after %.1f s, then %d MiB", seconds(g.ready), g.memory(b)>>20)
	took := map[string][]time.Duration{}
	var answers []time.Duration
	review := g.review(b)
	for b.Loop() {
		for range gateRounds {
			for _, namespace := range []string{unasked, nothing, gated} {
				took[namespace] = append(took[namespace], l.evict(b, namespace))
			}
			answers = append(answers, g.answer(b, review))
		}
	}
	middle := map[string]float64{}
	for namespace, all := range took {
		middle[namespace] = median(all, seconds) * 1000
		b.ReportMetric(middle[namespace], namespace+"-p50-ms")
		b.ReportMetric(percentile(all, 99).Seconds()*1000, namespace+"-p99-ms")
	}
	added, ratio, memory := percentile(answers, 99), middle[gated]/middle[nothing], g.memory(b)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(added.Seconds()*1000, "added-p99-ms")
	b.ReportMetric(seconds(g.ready), "ready-s")
	b.ReportMetric(float64(memory>>20), "MiB")
	if ratio > gateRatio {
		b.Errorf("an eviction through the gate took %.2f of one through a webhook that does nothing, want %.1f at most", ratio, gateRatio)
	}
	if added > gateAdded {
		b.Errorf("the slowest answers of a hundred took %s, want %s at most", added, gateAdded)
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

// couple makes two pods of a Service of policy Local on one node, one of which is kept.
func (l *large) couple(b *testing.B, namespace string) {
	b.Helper()
	ctx, made := b.Context(), metav1.CreateOptions{}
	fatal := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	_, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, made)
	fatal(err)
	no, node, port := false, "n1", int32(8080)
	_, err = l.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: &no, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}, made)
	fatal(err)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port}},
	}
	yes := true
	for i, name := range []string{"goes", "kept"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}},
		}
		if name == "kept" {
			pod.Annotations = map[string]string{guard.AnnotationKeeper: "web"}
		}
		pod, err = l.client.CoreV1().Pods(namespace).Create(ctx, pod, made)
		fatal(err)
		ip := fmt.Sprintf("10.255.0.%d", i+1)
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		}
		_, err = l.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		fatal(err)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name, UID: pod.UID},
		})
	}
	_, err = l.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, made)
	fatal(err)
}

// evict evicts the pod that may go, as a dry run.
func (l *large) evict(b *testing.B, namespace string) time.Duration {
	b.Helper()
	began := time.Now()
	err := l.client.PolicyV1().Evictions(namespace).Evict(b.Context(), &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: "goes"},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
	took := time.Since(began)
	if err != nil {
		b.Fatalf("%s: %v", namespace, err)
	}
	return took
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

// gate is a process of the gate that reviews the evictions of one namespace.
type gate struct {
	cmd   *exec.Cmd
	url   string
	ready time.Duration // after its start
	http  *http.Client
}

func (l *large) startGate(b *testing.B) *gate {
	b.Helper()
	const namespace = "safedrain-system"
	if _, err := l.client.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	webhook, health, meter := freePort(b), freePort(b), freePort(b)
	g := &gate{
		url:  fmt.Sprintf("https://127.0.0.1:%d/evict", webhook),
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 10 * time.Second},
	}
	l.webhook(b, gated, admissionregistrationv1.WebhookClientConfig{URL: &g.url})
	kubeconfig := filepath.Join(b.TempDir(), "kubeconfig")
	if err := controlplane.WriteKubeconfig(l.Config(), kubeconfig); err != nil {
		b.Fatal(err)
	}
	var log bytes.Buffer
	g.cmd = exec.Command(safedrain, "gate", "--mode=enforce", "--scale=clamp", "--kubeconfig="+kubeconfig, "--namespace="+namespace,
		"--webhook-configuration="+gated, "--cert-host=127.0.0.1", "--webhook-port="+strconv.Itoa(webhook),
		fmt.Sprintf("--health-address=127.0.0.1:%d", health), fmt.Sprintf("--metrics-address=127.0.0.1:%d", meter))
	g.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir()}
	g.cmd.Stdout, g.cmd.Stderr = &log, &log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := g.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
		if b.Failed() {
			b.Log(log.String())
		}
	})
	err := controlplane.Poll(b.Context(), 5*gateReady, "the gate is ready", func(ctx context.Context) (bool, string, error) {
		code, text, err := g.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz?verbose=1", health))
		return code == http.StatusOK, text, err
	})
	g.ready = time.Since(began)
	if err == nil {
		err = controlplane.Poll(b.Context(), gateReady, "the gate is asked", func(ctx context.Context) (bool, string, error) {
			err := l.client.PolicyV1().Evictions(gated).Evict(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: gated, Name: "kept"},
				DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
			})
			return err != nil && regexp.MustCompile(`is kept|keeper|Keeper|keeps`).MatchString(err.Error()), fmt.Sprint(err), nil
		})
	}
	if err != nil {
		b.Fatalf("%v\n%s", err, log.String())
	}
	return g
}

func (g *gate) get(ctx context.Context, url string) (code int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// memory is the most that the process had in memory, in bytes.
func (g *gate) memory(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		b.Fatalf("no VmHWM in\n%s", text)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib << 10
}

// review is what the API server asks about the eviction that the benchmark asks for.
func (g *gate) review(b *testing.B) []byte {
	b.Helper()
	dry := true
	text, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Name: "goes", Namespace: gated, Operation: admissionv1.Create, SubResource: "eviction", DryRun: &dry,
			Kind:     metav1.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Object:   runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"goes","namespace":%q}}`, gated)},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// answer asks the gate itself, over a connection that stands, as the API server does: what it adds to an eviction.
func (g *gate) answer(b *testing.B, review []byte) time.Duration {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, g.url, bytes.NewReader(review))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", runtime.ContentTypeJSON)
	began := time.Now()
	resp, err := g.http.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	took := time.Since(began)
	_ = resp.Body.Close()
	if err != nil || !bytes.Contains(body, []byte(`"allowed":true`)) {
		b.Fatalf("status %d, %v\n%s", resp.StatusCode, err, body)
	}
	return took
}

func freePort(b *testing.B) int {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
