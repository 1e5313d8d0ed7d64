package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/safedrain/safedrain/test/controlplane"
)

// admitted is one call of a webhook: the pod, and the UID that the eviction had as its precondition.
type admitted struct {
	pod string
	uid types.UID
}

// verdict is a webhook's answer to the nth eviction of a pod, counted from one. Code 0 allows; hangUp breaks the
// connection.
type verdict struct {
	code   int32
	reason metav1.StatusReason
	hangUp bool
}

// webhook is an admission webhook of somebody else's for the evictions of a scene.
type webhook struct {
	s      *scene
	decide func(pod string, n int) verdict

	mu    sync.Mutex
	calls []admitted
	nth   map[string]int
}

// webhook registers a webhook with failurePolicy Fail and returns when the API server asks it.
func (s *scene) webhook(decide func(pod string, n int) verdict) *webhook {
	s.Helper()
	h := &webhook{s: s, decide: decide, nth: map[string]int{}}
	server := httptest.NewTLSServer(http.HandlerFunc(h.serve))
	s.Cleanup(server.Close)
	url, fail, none := server.URL+"/evict", admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "evict.operator.example.com", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail, SideEffects: &none,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.Namespace}},
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
	probe := s.pod("probe", "probe", s.nodes[len(s.nodes)-1])
	s.Wait("the webhook is asked", func(ctx context.Context) (bool, string, error) {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: probe.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		_ = s.Client.CoreV1().Pods(s.Namespace).EvictV1(ctx, eviction)
		return len(h.of("probe")) > 0, "", nil
	})
	return h
}

func (h *webhook) serve(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	var eviction policyv1.Eviction
	err := json.NewDecoder(req.Body).Decode(&review)
	if err == nil {
		err = json.Unmarshal(review.Request.Object.Raw, &eviction)
	}
	if err != nil {
		h.s.Errorf("read a review: %v", err)
		return
	}
	call := admitted{pod: review.Request.Name}
	if o := eviction.DeleteOptions; o != nil && o.Preconditions != nil && o.Preconditions.UID != nil {
		call.uid = *o.Preconditions.UID
	}
	h.mu.Lock()
	h.calls = append(h.calls, call)
	h.nth[call.pod]++
	n := h.nth[call.pod]
	h.mu.Unlock()
	v := verdict{}
	if call.pod != "probe" {
		v = h.decide(call.pod, n)
	}
	if v.hangUp {
		panic(http.ErrAbortHandler)
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: v.code == 0}
	if v.code != 0 {
		review.Response.Result = &metav1.Status{Code: v.code, Reason: v.reason, Message: "the operator moves this pod itself"}
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(review)
}

// of returns the calls about a pod.
func (h *webhook) of(pod string) []admitted {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []admitted
	for _, c := range h.calls {
		if c.pod == pod {
			out = append(out, c)
		}
	}
	return out
}

// TestC22MovedByItsOperator: denials of any code are waited out, and a pod that its operator moves is done, never evicted
// in its new place.
func TestC22MovedByItsOperator(t *testing.T) {
	s := newScene(t, 3)
	pod := s.pod("kafka", "kafka-1", s.nodes[0])
	s.remember()
	moves := make(chan struct{})
	h := s.webhook(func(_ string, n int) verdict {
		if n == 4 {
			close(moves)
			return verdict{code: 500, reason: metav1.StatusReasonInternalError}
		}
		return verdict{code: 403, reason: metav1.StatusReasonForbidden}
	})
	b := s.start(s.nodes[0], "--force", "--timeout=100s")
	select {
	case <-moves:
	case <-time.After(time.Minute):
		t.Fatalf("the webhook was asked %d times only", len(h.of("kafka-1")))
	}
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(s.Context(), "kafka-1", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	moved := s.pod("kafka", "kafka-1", s.nodes[2])
	e := b.end(s)
	e.want(s, 0, "webhook evict.operator.example.com")
	s.alive(moved)
	for _, call := range h.of("kafka-1") {
		if call.uid != pod.UID {
			t.Errorf("an eviction without the precondition of UID %s: %q", pod.UID, call.uid)
		}
	}
	s.back(s.nodes[0])
}

// TestC22DeniedWithEachCode: whatever the code, a webhook that gives in at last lets the pod go.
func TestC22DeniedWithEachCode(t *testing.T) {
	s := newScene(t, 2)
	reasons := map[int32]metav1.StatusReason{
		403: metav1.StatusReasonForbidden, 429: metav1.StatusReasonTooManyRequests, 500: metav1.StatusReasonInternalError,
		400: metav1.StatusReasonBadRequest, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict,
	}
	for code := range reasons {
		s.pod("web", fmt.Sprintf("denied-%d", code), s.nodes[0])
	}
	s.remember()
	h := s.webhook(func(pod string, n int) verdict {
		var code int32
		if _, err := fmt.Sscanf(pod, "denied-%d", &code); err != nil || n > 3 {
			return verdict{}
		}
		return verdict{code: code, reason: reasons[code]}
	})
	e := s.run(s.nodes[0], "--force", "--timeout=100s")
	e.want(s, 0, "webhook evict.operator.example.com")
	for code := range reasons {
		if n := len(h.of(fmt.Sprintf("denied-%d", code))); n != 4 {
			t.Errorf("denied with %d: asked %d times, want 4", code, n)
		}
	}
	s.back(s.nodes[0])
}

// TestC23WebhookComesUp: a webhook that is restarting breaks the call; the pod is evicted at the second try.
func TestC23WebhookComesUp(t *testing.T) {
	s := newScene(t, 2)
	pod := s.pod("vm", "vm1", s.nodes[0])
	s.remember()
	h := s.webhook(func(_ string, n int) verdict { return verdict{hangUp: n == 1} })
	s.run(s.nodes[0], "--force", "--timeout=100s").want(s, 0)
	if n := len(h.of("vm1")); n != 2 {
		t.Errorf("asked %d times, want 2", n)
	}
	s.gone(pod)
	s.back(s.nodes[0])
}

// TestC23NeverDone: a run that leaves a pod is never done: a webhook that is down for ever, one that denies for ever, and
// a budget that never allows.
func TestC23NeverDone(t *testing.T) {
	s := newScene(t, 2)
	down := s.pod("vm", "down", s.nodes[0])
	denied := s.pod("vm", "denied", s.nodes[0])
	held := s.pod("held", "held", s.nodes[0])
	s.pod("held", "held-unready", s.nodes[1], controlplane.With(map[string]string{controlplane.Ready: "false"}))
	s.Budget("held", intstr.FromInt(1))
	s.remember()
	s.webhook(func(pod string, _ int) verdict {
		switch pod {
		case "down":
			return verdict{hangUp: true}
		case "denied":
			return verdict{code: 500, reason: metav1.StatusReasonInternalError}
		}
		return verdict{}
	})
	e := s.run(s.nodes[0], "--force", "--timeout=8s")
	e.want(s, 4, "webhook evict.operator.example.com", "budget "+s.Namespace+"/held", "the operator moves this pod itself")
	s.alive(down, denied, held)
	s.holds(s.nodes[0], true, false, true)
	s.back(s.nodes[0])
}
