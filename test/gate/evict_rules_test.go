package gate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/gate/admission"
	"github.com/safedrain/safedrain/pkg/guard"
)

// edge is a Service of policy Local with two pods on one node and one on another: a and b, and c.
func (s *evictScene) edge() (node, other string) {
	s.Helper()
	nodes := s.Nodes(2)
	s.Service("edge")
	s.Pod("a", nodes[0], labelled("edge"))
	s.Pod("b", nodes[0], labelled("edge"))
	s.Pod("c", nodes[1], labelled("edge"))
	s.seen("edge", 3)
	return nodes[0], nodes[1]
}

// want fails unless an eviction is refused with 429, for a reason, in one short line.
func (s *evictScene) want(code int, status *metav1.Status, reason guard.EvictionReason, parts ...string) {
	s.Helper()
	if code != 429 || status.Reason != metav1.StatusReasonTooManyRequests || status.Details == nil || status.Details.RetryAfterSeconds != 1 {
		s.Fatalf("code %d, reason %s, details %+v: %s", code, status.Reason, status.Details, status.Message)
	}
	if len(status.Details.Causes) == 0 || string(status.Details.Causes[0].Type) != string(reason) {
		s.Errorf("causes %+v, want %s", status.Details.Causes, reason)
	}
	_, ours, ok := strings.Cut(status.Message, `admission webhook "evict.safedrain.dev" denied the request: `)
	if !ok || utf8.RuneCountInString(ours) > 120 || strings.Contains(ours, "\n") {
		s.Errorf("message %q", status.Message)
	}
	for _, p := range parts {
		if !strings.Contains(ours, p) {
			s.Errorf("message %q lacks %q", ours, p)
		}
	}
}

// TestEvictBothVersions: policy/v1 and policy/v1beta1, of one kept and one that is not, and the last one of a node.
func TestEvictBothVersions(t *testing.T) {
	s := newEvictScene(t, 1, admission.Enforce)
	s.edge()
	for _, version := range []string{"v1", "v1beta1"} {
		code, status := s.evict(version, "a")
		s.want(code, status, guard.NoKeeper, s.Namespace+"/edge")
		code, status = s.evict(version, "c")
		s.want(code, status, guard.OnlyEndpoint, "last endpoint on", "cordon the node")
	}
	s.mark("a", "edge")
	code, status := s.evict("v1beta1", "a")
	s.want(code, status, guard.Keeper, "the endpoint kept on")
	if code, status := s.evict("v1beta1", "b"); code != 201 {
		t.Fatalf("%d: %s", code, status.Message)
	}
	s.Gone("b", "")
	s.seen("edge", 2)
	code, status = s.evict("v1", "a")
	s.want(code, status, guard.OnlyEndpoint)
}

// TestEvictTypedClients: what client-go's own clients make of a refusal.
func TestEvictTypedClients(t *testing.T) {
	s := newEvictScene(t, 1, admission.Enforce)
	s.edge()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := s.calls.Load()
	evicted := make(chan error, 1)
	go func() { evicted <- s.Client.CoreV1().Pods(s.Namespace).EvictV1(ctx, eviction("c")) }()
	s.Wait("client-go to wait a second and to ask again by itself", func(context.Context) (bool, string, error) {
		calls := s.calls.Load() - before
		return calls >= 2, fmt.Sprintf("%d calls", calls), nil
	})
	cancel()
	if err := <-evicted; err == nil {
		t.Error("the last endpoint of a node was evicted")
	}
	config := rest.CopyConfig(s.Cluster.Config())
	code, status := s.evict("v1", "c")
	if !apierrors.IsTooManyRequests(&apierrors.StatusError{ErrStatus: *status}) || code != 429 {
		t.Errorf("%d %+v (%s)", code, status, config.Host)
	}
}

// TestEvictClaims: the claim on the node decides, as it is now and not as a cache has it.
func TestEvictClaims(t *testing.T) {
	s := newEvictScene(t, 1, admission.Enforce)
	_, node := s.edge()
	now := time.Now().UTC().Truncate(time.Second)
	until := now.Add(10 * time.Minute)
	put := func(phase claim.Phase, service claim.Service, ended bool) {
		t.Helper()
		c := claim.Claim{
			Run: "r", Holder: "test", Nodes: []string{node}, Phase: phase, Set: []string{claim.SetUnschedulable},
			Services: map[string]claim.Service{s.Namespace + "/edge": service},
		}
		if ended {
			c.Ended = &now
		}
		s.patchNode(node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"unschedulable":true}}`, claim.Annotation, c.String()))
	}
	steps := []struct {
		name    string
		phase   claim.Phase
		service claim.Service
		ended   bool
		reason  guard.EvictionReason // "" allows
		parts   []string
	}{
		{"leaving", claim.Withdrawn, claim.Service{Hook: "metallb-l2", Since: &now, Until: &until}, false, guard.NodeLeaving, []string{"leaving metallb-l2 since " + now.Format("15:04:05Z"), "once proven"}},
		{"no proof to come", claim.Withdrawn, claim.Service{Hook: "none", Since: &now, Until: &until, Unproven: true}, false, guard.NodeLeaving, []string{"eviction allowed at " + until.Format("15:04:05Z")}},
		{"proven, not settled", claim.Withdrawn, claim.Service{Hook: "x", Since: &now, ProofAt: &now, Until: &until}, false, guard.NodeLeaving, []string{"eviction allowed at " + until.Format("15:04:05Z")}},
		{"not proven", claim.Withdrawn, claim.Service{Hook: "x", Since: &now, Until: &until}, true, guard.NotProven, []string{"not proven"}},
		{"on the way back", claim.Closing, claim.Service{Hook: "x", Since: &now, Released: true}, false, guard.OnlyEndpoint, nil},
		{"released", claim.Proven, claim.Service{Hook: "x", Since: &now, Released: true}, true, "", nil},
		{"of an older version, proven", claim.Withdrawn, claim.Service{Hook: "x", ProofAt: &now}, false, "", nil},
	}
	for _, step := range steps {
		put(step.phase, step.service, step.ended)
		code, status := s.evict("v1", "c", "dryRun=All")
		if step.reason == "" {
			if code != 201 {
				t.Errorf("%s: %d %s", step.name, code, status.Message)
			}
			continue
		}
		s.want(code, status, step.reason, step.parts...)
	}
	// Somebody uncordons the node: what was proven holds no longer.
	s.patchNode(node, `{"spec":{"unschedulable":null}}`)
	code, status := s.evict("v1", "c", "dryRun=All")
	s.want(code, status, guard.OnlyEndpoint)
}

// TestEvictModes: the most specific mode wins, and break-glass on the node wins over all.
func TestEvictModes(t *testing.T) {
	s := newEvictScene(t, 1, admission.Enforce)
	_, node := s.edge()
	service := func(value string) func() {
		return func() { s.annotate("Service", value) }
	}
	namespace := func(value string) func() {
		return func() { s.annotate("Namespace", value) }
	}
	for _, step := range []struct {
		do   func()
		code int
	}{
		{func() {}, 429},
		{namespace("warn"), 201},
		{service("enforce"), 429},
		{service("off"), 201},
		{namespace("off"), 201},
		{service("enforce"), 429},
		{func() { s.patchNode(node, `{"metadata":{"annotations":{"safedrain.dev/gate":"off"}}}`) }, 201},
		{func() { s.patchNode(node, `{"metadata":{"annotations":{"safedrain.dev/gate":null}}}`) }, 429},
		{service("enforced"), 201}, // no mode: the namespace's
		{namespace("on"), 429},     // no mode: the cluster's
	} {
		step.do()
		var code int
		var status *metav1.Status
		s.Wait(fmt.Sprintf("the answer %d", step.code), func(context.Context) (bool, string, error) {
			code, status = s.evict("v1", "c", "dryRun=All")
			return code == step.code, fmt.Sprint(code, status.Message), nil
		})
	}
}

// annotate sets the gate's mode on the Service or on the namespace.
func (s *evictScene) annotate(kind, value string) {
	s.Helper()
	var err error
	switch kind {
	case "Service":
		svc := s.Client.CoreV1().Services(s.Namespace)
		var o *corev1.Service
		if o, err = svc.Get(s.Context(), "edge", metav1.GetOptions{}); err == nil {
			o.Annotations = map[string]string{guard.AnnotationGate: value}
			_, err = svc.Update(s.Context(), o, metav1.UpdateOptions{})
		}
	case "Namespace":
		var o *corev1.Namespace
		if o, err = s.Client.CoreV1().Namespaces().Get(s.Context(), s.Namespace, metav1.GetOptions{}); err == nil {
			o.Annotations = map[string]string{guard.AnnotationGate: value}
			_, err = s.Client.CoreV1().Namespaces().Update(s.Context(), o, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		s.Fatal(err)
	}
}

// TestEvictWarns: in warn mode an eviction passes and says so.
func TestEvictWarns(t *testing.T) {
	s := newEvictScene(t, 1, admission.Warn)
	_, node := s.edge()
	kubectl := program(s.Cluster, t)
	_, stderr, code := kubectl("drain", node, "--force", "--timeout=100s")
	want := fmt.Sprintf("safedrain would wait: %s/edge: last endpoint on %s", s.Namespace, node)
	if code != 0 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "(gate=warn)") {
		t.Errorf("code %d, stderr %s\nwant %q", code, stderr, want)
	}
	if n := s.node(node); n.Annotations[claim.AnnotationRefused] != "" {
		t.Errorf("a refusal was noted: %v", n.Annotations)
	}
}

func (s *evictScene) node(name string) *corev1.Node {
	s.Helper()
	n, err := s.Client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return n
}

// TestEvictNotes: a refusal on a node that is about to go is noted there, at most once a minute, and a dry run leaves nothing.
func TestEvictNotes(t *testing.T) {
	s := newEvictScene(t, 2, admission.Enforce)
	_, node := s.edge()
	s.evict("v1", "c")
	s.patchNode(node, `{"spec":{"unschedulable":true}}`)
	code, status := s.evict("v1", "c", "dryRun=All")
	s.want(code, status, guard.OnlyEndpoint, "eviction allowed once it is withdrawn")
	code, status = s.post("c", fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"c","namespace":%q},"deleteOptions":{"dryRun":["All"]}}`, s.Namespace))
	s.want(code, status, guard.OnlyEndpoint)
	kubectl := program(s.Cluster, t)
	if _, stderr, code := kubectl("drain", node, "--force", "--dry-run=server", "--timeout=10s"); code == 0 || !strings.Contains(stderr, "last endpoint on") {
		t.Errorf("drain --dry-run=server: %d %s", code, stderr)
	}
	if n := s.node(node); n.Annotations[claim.AnnotationRefused] != "" {
		t.Errorf("dry runs and a node that stays left a note: %v", n.Annotations)
	}
	for range 6 {
		s.evict("v1", "c")
	}
	var at string
	s.Wait("the note", func(context.Context) (bool, string, error) {
		at = s.node(node).Annotations[claim.AnnotationRefused]
		return at != "", "", nil
	})
	for range 6 {
		s.evict("v1", "c")
	}
	time.Sleep(time.Second)
	if again := s.node(node).Annotations[claim.AnnotationRefused]; again != at {
		t.Errorf("it was written again: %s, then %s", at, again)
	}
}

// TestEvictUnrelated: what serves nothing, is not Ready, is finished or is of policy Cluster goes at once.
func TestEvictUnrelated(t *testing.T) {
	s := newEvictScene(t, 1, admission.Enforce)
	nodes := s.Nodes(1)
	s.Service("edge")
	s.Service("whole", func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster })
	s.Service("inside", func(svc *corev1.Service) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		svc.Spec.Type, svc.Spec.ExternalTrafficPolicy, svc.Spec.InternalTrafficPolicy = corev1.ServiceTypeClusterIP, "", &local
	})
	s.Pod("plain", nodes[0])
	s.Pod("whole", nodes[0])
	s.Pod("inside", nodes[0])
	s.Pod("unready", nodes[0], labelled("edge"), func(p *corev1.Pod) { p.Annotations["test.safedrain.dev/ready"] = "false" })
	for _, pod := range []string{"plain", "whole", "inside", "unready"} {
		if code, status := s.evict("v1", pod); code != 201 {
			t.Errorf("%s: %d %s", pod, code, status.Message)
		}
	}
	if code, _ := s.evict("v1", "nobody"); code != 404 {
		t.Errorf("a pod that is not there: %d, want the API server's own 404", code)
	}
}
