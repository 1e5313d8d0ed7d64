package gate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/safedrain/safedrain/test/controlplane"
)

// shop is a Deployment "checkout" behind a NodePort Service of policy Local, spread over nodes that all send.
type shop struct {
	*controlplane.Env
	gate  *gated
	nodes []string
}

// newShop makes a test parallel and gives it a shop that the gate of a policy judges.
func newShop(t *testing.T, policy string, nodes int, replicas int32) *shop {
	t.Helper()
	t.Parallel()
	g := oneGate(t, "gate-"+policy, 1, "--mode=enforce", "--scale="+policy)
	s := &shop{Env: g.cluster.Env(t), gate: g}
	s.nodes = s.Nodes(nodes, longReady)
	s.Service("checkout")
	s.Deployment("checkout", replicas, spread)
	s.EndpointsReady("checkout", int(replicas))
	g.judges(s.Env)
	g.holds(s.Env, "checkout", int32(nodes))
	return s
}

// autoscale makes an autoscaler of the shop that wants as many replicas as the metric says.
func (s *shop) autoscale(least int32) *adapter {
	s.Helper()
	return autoscale(s.Env, s.gate.cluster, "checkout", least)
}

// autoscale makes an autoscaler of a Deployment, with its name.
func autoscale(e *controlplane.Env, c *controlplane.Cluster, deployment string, least int32) *adapter {
	e.Helper()
	a := externalMetrics(e.TB, c)
	target := resource.MustParse("1")
	now := int32(0)
	_, err := e.Client.AutoscalingV2().HorizontalPodAutoscalers(e.Namespace).Create(e.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: deployment},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: deployment},
			MinReplicas:    &least, MaxReplicas: 12,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ExternalMetricSourceType,
				External: &autoscalingv2.ExternalMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &target},
				},
			}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &now},
				ScaleUp:   &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &now},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return a
}

// asked waits until the autoscaler has asked for a number of replicas n times, whatever it got.
func (s *shop) asked(desired int32, n int) *autoscalingv2.HorizontalPodAutoscaler {
	s.Helper()
	var h *autoscalingv2.HorizontalPodAutoscaler
	s.Wait(fmt.Sprintf("the autoscaler asks for %d", desired), func(ctx context.Context) (bool, string, error) {
		var err error
		h, err = s.Client.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace).Get(ctx, "checkout", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		seen := 0
		for _, e := range s.events("HorizontalPodAutoscaler", "checkout") {
			if strings.HasPrefix(e.Message, fmt.Sprintf("New size: %d;", desired)) {
				seen += int(max(e.Count, 1))
			}
		}
		return seen >= n, fmt.Sprintf("seen %d times; conditions %s", seen, conditions(h)), nil
	})
	return h
}

func conditions(h *autoscalingv2.HorizontalPodAutoscaler) string {
	var out []string
	for _, c := range h.Status.Conditions {
		out = append(out, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(out, "; ")
}

// ableToScale is the condition of an autoscaler that says whether its last write went through.
func ableToScale(h *autoscalingv2.HorizontalPodAutoscaler) (corev1.ConditionStatus, string) {
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.AbleToScale {
			return c.Status, c.Reason
		}
	}
	return corev1.ConditionUnknown, ""
}

// events are those about an object, as kubectl describe finds them.
func (s *shop) events(kind, name string) []corev1.Event {
	s.Helper()
	return eventsOf(s.Env, kind, name)
}

func eventsOf(e *controlplane.Env, kind, name string) []corev1.Event {
	e.Helper()
	list, err := e.Client.CoreV1().Events(e.Namespace).List(e.Context(), metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}.String(),
	})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

// wantEvent waits for exactly one event of the gate about an object, with these words.
func (s *shop) wantEvent(kind, reason string, words ...string) {
	s.Helper()
	s.Wait(fmt.Sprintf("event %s on %s", reason, kind), func(context.Context) (bool, string, error) {
		var found []corev1.Event
		for _, e := range s.events(kind, "checkout") {
			if e.Reason == reason {
				found = append(found, e)
			}
		}
		if len(found) != 1 {
			return false, fmt.Sprintf("%d events", len(found)), nil
		}
		if found[0].InvolvedObject.UID == "" || found[0].Count > 1 || found[0].Series != nil {
			return false, "", fmt.Errorf("event without a UID, or told again: %+v", found[0])
		}
		for _, w := range words {
			if !strings.Contains(found[0].Message, w) {
				return false, "", fmt.Errorf("event %q lacks %q", found[0].Message, w)
			}
		}
		return true, "", nil
	})
}

func (s *shop) replicas() int32 {
	s.Helper()
	d, err := s.Client.AppsV1().Deployments(s.Namespace).Get(s.Context(), "checkout", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return *d.Spec.Replicas
}

// covered ends the test unless each of its nodes has an endpoint.
func (s *shop) covered() {
	s.Helper()
	have := on(s.Env, "checkout")
	for _, node := range s.nodes {
		if have[node] == 0 {
			s.Errorf("node %s, in rotation, has no endpoint: %v", node, have)
		}
	}
}

// TestAutoscalerClamped: an autoscaler that wants 2 of 6 replicas behind three nodes gets 3, and stays content.
func TestAutoscalerClamped(t *testing.T) {
	s := newShop(t, "clamp", 3, 6)
	metric := s.autoscale(1)
	metric.set(s.Namespace, 2)
	h := s.asked(2, 3)
	if n := s.replicas(); n != 3 {
		t.Errorf("%d replicas are stored, want 3", n)
	}
	if status, reason := ableToScale(h); status != corev1.ConditionTrue || reason != "SucceededRescale" {
		t.Errorf("AbleToScale %s %s", status, reason)
	}
	s.PodsReady("checkout", 3)
	s.covered()
	for _, kind := range []string{"Deployment", "HorizontalPodAutoscaler"} {
		s.wantEvent(kind, "ReplicasClamped", "kept deployment "+s.Namespace+"/checkout at 3, asked for 2", "3 nodes send for Service "+s.Namespace+"/checkout", "minReplicas to 3")
	}
	metric.set(s.Namespace, 7)
	s.PodsReady("checkout", 7)
}

// TestAutoscalerClampedAtZero: an autoscaler that may scale to zero and wants that gets the floor: it is no human.
func TestAutoscalerClampedAtZero(t *testing.T) {
	s := newShop(t, "clamp", 3, 6)
	s.autoscale(0).set(s.Namespace, 0)
	h := s.asked(0, 3)
	if n := s.replicas(); n != 3 {
		t.Errorf("%d replicas are stored, want 3", n)
	}
	if status, _ := ableToScale(h); status != corev1.ConditionTrue {
		t.Errorf("conditions %s", conditions(h))
	}
	s.PodsReady("checkout", 3)
	s.covered()
}

// TestAutoscalerDenied: where the policy is to deny nothing changes, and the autoscaler shows why, to zero likewise.
func TestAutoscalerDenied(t *testing.T) {
	s := newShop(t, "deny", 3, 6)
	metric := s.autoscale(0)
	for desired, least := range map[int32]int64{2: 2, 0: 0} {
		metric.set(s.Namespace, least)
		h := s.asked(desired, 2)
		if n := s.replicas(); n != 6 {
			t.Errorf("asked for %d: %d replicas are stored, want 6", desired, n)
		}
		if status, reason := ableToScale(h); status != corev1.ConditionFalse || reason != "FailedUpdateScale" {
			t.Errorf("asked for %d: AbleToScale %s %s", desired, status, reason)
		}
	}
	want := fmt.Sprintf(`admission webhook "scale.safedrain.dev" denied the request: deployment %[1]s/checkout needs 3: 3 nodes send for Service %[1]s/checkout (raise minReplicas, or safedrain.dev/floor there)`, s.Namespace)
	found := false
	for _, e := range s.events("HorizontalPodAutoscaler", "checkout") {
		found = found || e.Reason == "FailedRescale" && strings.Contains(e.Message, want)
	}
	if !found {
		t.Errorf("no event FailedRescale with %q: %v", want, s.events("HorizontalPodAutoscaler", "checkout"))
	}
	metric.set(s.Namespace, 4)
	s.PodsReady("checkout", 4)
	s.covered()
}

// TestScaledByHand: what kubectl prints, and what passes.
func TestScaledByHand(t *testing.T) {
	for policy, want := range map[string]struct {
		code int
		text string
	}{
		"clamp": {0, "Warning: safedrain kept 3 replicas, asked for 2: 3 nodes send for Service %[1]s/checkout\n"},
		"deny":  {1, `Error from server (Forbidden): admission webhook "scale.safedrain.dev" denied the request: deployment %[1]s/checkout needs 3: 3 nodes send for Service %[1]s/checkout`},
	} {
		t.Run(policy, func(t *testing.T) {
			s := newShop(t, policy, 3, 6)
			kubectl := program(s.gate.cluster, t)
			_, stderr, code := kubectl("-n", s.Namespace, "scale", "deployment/checkout", "--replicas=2")
			if code != want.code || !strings.Contains(stderr, fmt.Sprintf(want.text, s.Namespace)) {
				t.Errorf("exit code %d, %s", code, stderr)
			}
			if strings.Count(stderr, "safedrain") > 2 {
				t.Errorf("said more than once: %s", stderr)
			}
			_, stderr, code = kubectl("-n", s.Namespace, "patch", "deployment/checkout", "--type=merge", "-p", `{"spec":{"replicas":2}}`)
			if code == 0 || !strings.Contains(stderr, `admission webhook "replicas.safedrain.dev" denied the request: deployment `+s.Namespace+"/checkout needs 3") {
				t.Errorf("patched below the floor: exit code %d, %s", code, stderr)
			}
			for _, n := range []int32{4, 5, 0} { // down to what is enough, up, and a human who means zero
				s.Wait(fmt.Sprintf("scaled to %d", n), func(context.Context) (bool, string, error) {
					_, stderr, code := kubectl("-n", s.Namespace, "scale", "deployment/checkout", fmt.Sprintf("--replicas=%d", n))
					if code != 0 && !strings.Contains(stderr, "keepers are being marked, try again") {
						t.Errorf("scaled to %d: %s", n, stderr)
						return true, "", nil
					}
					return code == 0, stderr, nil
				})
				if got := s.replicas(); got != n {
					t.Errorf("scaled to %d: %d are stored", n, got)
				}
				s.PodsReady("checkout", int(n))
			}
		})
	}
}

// TestRolloutPasses: a rollout takes the old ReplicaSet down step by step, below any floor, without a word.
func TestRolloutPasses(t *testing.T) {
	s := newShop(t, "deny", 3, 6)
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"at":%q}}}}}`, time.Now())
	if _, stderr, code := program(s.gate.cluster, t)("-n", s.Namespace, "patch", "deployment/checkout", "--type=merge", "-p", patch); code != 0 {
		t.Fatal(stderr)
	}
	s.Wait("the rollout is over", func(ctx context.Context) (bool, string, error) {
		sets, err := s.Client.AppsV1().ReplicaSets(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=checkout"})
		if err != nil {
			return false, "", err
		}
		sizes := map[int32]int{}
		for i := range sets.Items {
			sizes[sets.Items[i].Status.ReadyReplicas]++
		}
		return sizes[6] == 1 && sizes[0] == 1, fmt.Sprint(sizes), nil
	})
}
