package gate

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/gate/admission"
	"github.com/safedrain/safedrain/internal/gate/feed"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

// evictScene is a namespace whose evictions the gate's handlers judge, each with a Store of its own, in turn.
type evictScene struct {
	*controlplane.Env
	handlers []*evictHandler
	calls    atomic.Int64
	turn     atomic.Int64
	// retryAfter replaces what refusals ask clients to wait, in seconds; -1: as it is.
	retryAfter atomic.Int32
}

// evictHandler is one replica of the eviction gate.
type evictHandler struct {
	store   *cluster.Store
	handler http.Handler
}

// newEvictScene starts replicas of the eviction gate and registers them for the namespace of the test.
func newEvictScene(t *testing.T, replicas int, mode admission.Mode) *evictScene {
	t.Helper()
	t.Parallel()
	s := &evictScene{Env: shared.get(t).Env(t)}
	s.retryAfter.Store(-1)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for range replicas {
		s.handlers = append(s.handlers, s.replica(ctx, &running, mode))
	}
	server := httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	s.register(server)
	return s
}

func (s *evictScene) replica(ctx context.Context, running *sync.WaitGroup, mode admission.Mode) *evictHandler {
	s.Helper()
	clients, err := cluster.NewClients(s.Cluster.Config())
	if err != nil {
		s.Fatal(err)
	}
	set := hookset.New(hookset.Deps{})
	store := cluster.NewStore(set)
	log := slog.New(slog.DiscardHandler)
	follow := feed.New(clients, store, set.Descriptions(), log)
	notes := admission.NewNodeNotes(clients.Kubernetes, store, clock.RealClock{}, log)
	running.Go(func() { _ = follow.Start(ctx) })
	running.Go(func() { _ = notes.Run(ctx) })
	e := &admission.Evictions{
		Store: store, Live: admission.LiveReads{Client: clients.Kubernetes}, Mode: mode, Synced: follow.Synced, Refusals: notes,
	}
	s.Wait("the replica has read the cluster", func(context.Context) (bool, string, error) { return follow.Synced(), "", nil })
	return &evictHandler{store: store, handler: e.Handler(admission.Serving{Log: log})}
}

// serve hands each review to the next replica.
func (s *evictScene) serve(w http.ResponseWriter, req *http.Request) {
	s.calls.Add(1)
	h := s.handlers[s.turn.Add(1)%int64(len(s.handlers))].handler
	wait := s.retryAfter.Load()
	if wait < 0 {
		h.ServeHTTP(w, req)
		return
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, req)
	var review admissionv1.AdmissionReview
	if json.Unmarshal(answer.Body.Bytes(), &review) == nil && review.Response != nil && review.Response.Result != nil {
		review.Response.Result.Details.RetryAfterSeconds = wait
	}
	maps.Copy(w.Header(), answer.Header())
	_ = json.NewEncoder(w).Encode(review)
}

// register makes the API server ask about the evictions of the namespace, and waits until it does.
func (s *evictScene) register(server *httptest.Server) {
	s.Helper()
	url, fail, none, patience := server.URL+"/evict", admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNoneOnDryRun, int32(30)
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "evict.safedrain.dev", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &patience,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.Namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}},
		}},
	}
	client := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := client.Create(s.Context(), config, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = client.Delete(context.Background(), s.Namespace, metav1.DeleteOptions{}) })
	s.Wait("the gate is asked", func(ctx context.Context) (bool, string, error) {
		_ = s.Client.CoreV1().Pods(s.Namespace).EvictV1(ctx, eviction("nobody", metav1.DryRunAll))
		return s.calls.Load() > 0, "", nil
	})
}

// unthrottled is a client that sends as fast as it is asked to.
func (s *evictScene) unthrottled() kubernetes.Interface {
	s.Helper()
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(s.Cluster.Config()))
	if err != nil {
		s.Fatal(err)
	}
	return client
}

func eviction(pod string, dryRun ...string) *policyv1.Eviction {
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}}
	if len(dryRun) > 0 {
		e.DeleteOptions = &metav1.DeleteOptions{DryRun: dryRun}
	}
	return e
}

// evict posts an eviction once: without the retries that client-go makes by itself when it is asked to wait.
func (s *evictScene) evict(version, pod string, query ...string) (int, *metav1.Status) {
	s.Helper()
	body := fmt.Sprintf(`{"apiVersion":"policy/%s","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, version, pod, s.Namespace)
	return s.post(pod, body, query...)
}

func (s *evictScene) post(pod, body string, query ...string) (int, *metav1.Status) {
	s.Helper()
	req := s.Client.CoreV1().RESTClient().Post().Namespace(s.Namespace).Resource("pods").Name(pod).SubResource("eviction").
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").MaxRetries(0).Body([]byte(body))
	for _, q := range query {
		name, value, _ := strings.Cut(q, "=")
		req.Param(name, value)
	}
	var code int
	result := req.Do(s.Context()).StatusCode(&code)
	raw, _ := result.Raw()
	status := &metav1.Status{}
	if len(raw) == 0 || json.Unmarshal(raw, status) != nil {
		s.Fatalf("evict %s: code %d, %v", pod, code, result.Error())
	}
	return code, status
}

// mark makes a pod the keeper of Services, one that is relied on.
func (s *evictScene) mark(pod string, services ...string) {
	s.Helper()
	s.annotatePod(pod, guard.AnnotationKeeper, strings.Join(services, ","))
}

func (s *evictScene) annotatePod(pod, key, value string) {
	s.Helper()
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if _, err := s.Client.CoreV1().Pods(s.Namespace).Patch(s.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

// patchNode changes a node by a merge patch.
func (s *evictScene) patchNode(node, patch string) {
	s.Helper()
	if _, err := s.Client.CoreV1().Nodes().Patch(s.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

// labelled makes a pod one of an app.
func labelled(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[controlplane.AppLabel] = app }
}

// seen waits until every replica has as many Ready endpoints of a Service as there are to be.
func (s *evictScene) seen(service string, ready int) {
	s.Helper()
	s.Wait("the replicas know the endpoints of "+service, func(context.Context) (bool, string, error) {
		for _, h := range s.handlers {
			if n := h.endpoints(s.Namespace, service); n != ready {
				return false, fmt.Sprintf("one has %d", n), nil
			}
		}
		return true, "", nil
	})
}

// endpoints counts the Ready endpoints that a replica knows in a namespace, of some Services or of all.
func (h *evictHandler) endpoints(namespace string, services ...string) int {
	n := 0
	h.store.Read(func(v *cluster.StoreView) {
		for _, key := range v.Reached() {
			svc, ok := v.ReachedService(key)
			if !ok || key.Namespace != namespace || len(services) > 0 && !slices.Contains(services, key.Name) || len(svc.Ports) == 0 {
				continue
			}
			for _, e := range svc.Ports[0].Endpoints {
				if e.Ready && !e.Terminating {
					n++
				}
			}
		}
	})
	return n
}
