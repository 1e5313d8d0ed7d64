package gate

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	kubectldrain "k8s.io/kubectl/pkg/drain"

	"github.com/safedrain/safedrain/internal/gate/admission"
	"github.com/safedrain/safedrain/pkg/guard"
)

// withdrawalTakes is how long the node of these tests is refused, from the first time on.
const withdrawalTakes = 2500 * time.Millisecond

// TestEvictRetryAfter measures what retryAfterSeconds 0 and 1 do to kubectl drain's own code and to a client that comes again at
// once: how often the gate is asked, and how much later the pod goes than it might.
func TestEvictRetryAfter(t *testing.T) {
	clients := map[string]func(s *evictScene, node, pod string) error{
		"kubectl drain": func(s *evictScene, node, _ string) error {
			h := &kubectldrain.Helper{
				Ctx: s.Context(), Client: s.Client, Force: true, GracePeriodSeconds: -1, Timeout: 2 * time.Minute, Out: io.Discard, ErrOut: io.Discard,
			}
			list, errs := h.GetPodsForDeletion(node)
			if len(errs) > 0 {
				return errs[0]
			}
			return h.DeleteOrEvictPods(list.Pods())
		},
		"without delay": func(s *evictScene, _, pod string) error {
			for until := time.Now().Add(2 * time.Minute); ; {
				err := s.Client.CoreV1().Pods(s.Namespace).EvictV1(s.Context(), eviction(pod))
				if err == nil || time.Now().After(until) {
					return err
				}
			}
		},
	}
	for name, evict := range clients {
		for _, wait := range []int32{0, 1} {
			t.Run(fmt.Sprintf("%s, %d", name, wait), func(t *testing.T) {
				s := newEvictScene(t, 1, admission.Enforce)
				nodes := s.Nodes(2)
				s.Service("edge")
				s.Pod("c", nodes[0], labelled("edge"))
				s.Pod("o", nodes[1], labelled("edge"))
				s.seen("edge", 2)
				s.retryAfter.Store(wait)
				before := s.calls.Load()
				started := time.Now()
				evicted := make(chan error, 1)
				go func() { evicted <- evict(s, nodes[0], "c") }()
				s.Wait("a refusal", func(context.Context) (bool, string, error) { return s.calls.Load() > before, "none", nil })
				time.Sleep(withdrawalTakes)
				s.patchNode(nodes[0], fmt.Sprintf(`{"metadata":{"annotations":{%q:"off"}}}`, guard.AnnotationGate))
				if err := <-evicted; err != nil {
					t.Fatal(err)
				}
				took := time.Since(started)
				if calls := s.calls.Load() - before; took < withdrawalTakes || calls < 2 {
					t.Errorf("%d calls in %s", calls, took)
				}
				t.Logf("retryAfterSeconds %d, %s: %d calls, %s after the node was out", wait, name, s.calls.Load()-before, (took - withdrawalTakes).Round(10*time.Millisecond))
				left, err := s.Client.CoreV1().Pods(s.Namespace).List(s.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", nodes[0]).String()})
				if err != nil || len(left.Items) > 1 {
					t.Errorf("%d pods left: %v", len(left.Items), err)
				}
			})
		}
	}
}
