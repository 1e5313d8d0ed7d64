package gate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/gate/withdraw"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const autoscalersTaint = `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"NoSchedule"}]}}`

// withdrawals are the controller under test with short times; change may set others.
func (s *small) withdrawals(change ...func(*withdraw.Controller)) *withdraw.Controller {
	c := &withdraw.Controller{
		Client: s.client(), Store: s.store, Runner: s.runner, Events: s.events, Log: quiet(), Clock: wall,
		Options: withdraw.Options{
			HookTimeout: 30 * time.Second, Keep: time.Hour, Closing: 500 * time.Millisecond, WaitTimeout: 5 * time.Second,
			Retry: 300 * time.Millisecond, RetryMost: time.Second, Workers: 4, AcceptUnproven: []string{"all"},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func keepFor(d time.Duration) func(*withdraw.Controller) {
	return func(c *withdraw.Controller) { c.Options.Keep = d }
}

// refused notes what the gate notes when it refuses an eviction on a node.
func (s *small) refused(node string) {
	s.Helper()
	s.patchNode(node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, claim.AnnotationRefused, time.Now().UTC().Format(time.RFC3339)))
}

func (s *small) cordon(node string, yes bool) {
	s.Helper()
	s.patchNode(node, fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, yes))
}

// untaint removes every taint.
func (s *small) untaint(node string) {
	s.Helper()
	patch := []byte(`{"spec":{"taints":null}}`)
	if _, err := s.Client.CoreV1().Nodes().Patch(s.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		s.Fatal(err)
	}
}

// released reports whether a claim lets the pods of a Service go and is at rest.
func released(c *claim.Claim, service string) bool {
	return c != nil && c.Phase == claim.Proven && !c.Live() && c.Services[service].Released
}

// wantEvents waits for events with these texts: they are told after what they tell of is written.
func (s *small) wantEvents(parts ...string) {
	s.Helper()
	for _, part := range parts {
		s.Wait(fmt.Sprintf("an event with %q", part), func(context.Context) (bool, string, error) {
			all := strings.Join(s.events.all(), "\n")
			return strings.Contains(all, part), all, nil
		})
	}
}

// A node that somebody cordoned and whose evictions are refused leaves, proven; uncordoned, it comes back as it was.
func TestWithdrawForRefusedEvictions(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	s.run(s.withdrawals())
	s.cordon(s.nodes[0], true)
	pause(time.Second)
	if c := s.node(s.nodes[0]).Annotations[claim.Annotation]; c != "" {
		t.Fatalf("a cordoned node that nobody empties is claimed: %s", c)
	}
	s.refused(s.nodes[0])
	s.until("released", s.nodes[0], func(n *corev1.Node, c *claim.Claim) bool {
		return released(c, s.Namespace+"/web") && n.Labels[lbhooks.ExcludeLabel] == "true" && n.Spec.Unschedulable
	})
	if c, _ := claim.Of(s.node(s.nodes[0])); c.Holder != withdraw.Holder || c.Has(claim.SetUnschedulable) || c.Services[s.Namespace+"/web"].ProofAt == nil {
		t.Errorf("claim %v", c)
	}
	s.wantEvents("WithdrawStarted: somebody whose eviction was refused empties it: leaving test for "+s.Namespace+"/web",
		"WithdrawProven: "+s.Namespace+"/web out of test after")
	pause(time.Second)
	at := len(s.writes.all())
	pause(time.Second)
	if got := s.writes.all()[at:]; len(got) > 0 {
		t.Errorf("writes about a node that is out: %v", got)
	}
	s.cordon(s.nodes[0], false)
	s.until("closing", s.nodes[0], func(n *corev1.Node, c *claim.Claim) bool {
		return c == nil || c.Phase == claim.Closing && n.Labels[lbhooks.ExcludeLabel] == "true"
	})
	s.until("back", s.nodes[0], func(n *corev1.Node, c *claim.Claim) bool {
		_, labelled := n.Labels[lbhooks.ExcludeLabel]
		_, refused := n.Annotations[claim.AnnotationRefused]
		return c == nil && !labelled && !refused && !n.Spec.Unschedulable
	})
	s.wantEvents("NodeReturned: back in rotation")
}

// cluster-autoscaler taints and does not cordon. The node stays out while the taint stands and for some time after it, and is
// then as it was, schedulable.
func TestWithdrawForAutoscalers(t *testing.T) {
	for name, taint := range map[string]string{
		"cluster-autoscaler": autoscalersTaint,
		"Karpenter":          `{"spec":{"taints":[{"key":"karpenter.sh/disrupted","effect":"NoSchedule"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSmall(t, 2)
			s.on("web", "a", s.nodes[0])
			s.on("web", "b", s.nodes[1])
			s.behind("web")
			s.EndpointsReady("web", 2)
			s.run(s.withdrawals(keepFor(3 * time.Second)))
			s.patchNode(s.nodes[0], taint)
			s.until("released", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return released(c, s.Namespace+"/web") })
			s.wantEvents(name + " empties it")
			pause(4 * time.Second)
			if n := s.node(s.nodes[0]); n.Labels[lbhooks.ExcludeLabel] != "true" {
				t.Error("back in rotation while the taint stands")
			}
			last := time.Now()
			s.refused(s.nodes[0])
			s.untaint(s.nodes[0])
			s.until("back", s.nodes[0], func(n *corev1.Node, c *claim.Claim) bool {
				_, labelled := n.Labels[lbhooks.ExcludeLabel]
				return c == nil && !labelled && !n.Spec.Unschedulable
			})
			if took := time.Since(last); took < 2*time.Second {
				t.Errorf("back after %s, although an eviction was refused just before", took)
			}
		})
	}
}

// The last endpoint anywhere is not withdrawn; that is said, and tried again.
func TestWithdrawWaitsForAnotherEndpoint(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.behind("web")
	s.EndpointsReady("web", 1)
	s.run(s.withdrawals())
	s.patchNode(s.nodes[0], autoscalersTaint)
	s.Wait("refusal", func(context.Context) (bool, string, error) {
		all := strings.Join(s.events.all(), "\n")
		return strings.Contains(all, "WithdrawRefused: cluster-autoscaler empties it, but it cannot leave: "+s.Namespace+"/web LastEndpoint"), all, nil
	})
	if n := s.node(s.nodes[0]); n.Annotations[claim.Annotation] != "" || n.Spec.Unschedulable || n.Labels[lbhooks.ExcludeLabel] != "" {
		t.Errorf("a node that may not leave was changed: %v %v", n.Annotations, n.Labels)
	}
	s.on("web", "b", s.nodes[1])
	s.until("released", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return released(c, s.Namespace+"/web") })
	refusals := 0
	for _, e := range s.events.all() {
		if strings.Contains(e, withdraw.ReasonRefused) {
			refusals++
		}
	}
	if refusals != 1 {
		t.Errorf("the refusal was told %d times", refusals)
	}
}

// Two nodes that together have every endpoint are emptied at once: one of them leaves, whichever.
func TestWithdrawNeverTakesBoth(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	s.cordon(s.nodes[0], true)
	s.cordon(s.nodes[1], true)
	s.refused(s.nodes[0])
	s.refused(s.nodes[1])
	s.run(s.withdrawals())
	out := func() (n int) {
		for _, name := range s.nodes {
			node := s.node(name)
			if c, _ := claim.Of(node); released(c, s.Namespace+"/web") {
				n++
			}
		}
		return n
	}
	s.Wait("one is out", func(context.Context) (bool, string, error) { return out() > 0, "", nil })
	pause(3 * time.Second)
	if n := out(); n != 1 {
		t.Errorf("%d nodes let their pods go", n)
	}
	s.wantEvents(withdraw.ReasonRefused)
}

// A node that another run holds is left alone, alive or not.
func TestWithdrawLeavesClaimsOfOthers(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	other := (&claim.Claim{Run: "r1", Holder: "kim@laptop", Nodes: []string{s.nodes[0]}, Phase: claim.Granted}).String()
	s.patchNode(s.nodes[0], fmt.Sprintf(`{"spec":{"unschedulable":true},"metadata":{"annotations":{%q:%q}}}`, claim.Annotation, other))
	s.refused(s.nodes[0])
	s.run(s.withdrawals())
	pause(3 * time.Second)
	if n := s.node(s.nodes[0]); n.Annotations[claim.Annotation] != other || n.Labels[lbhooks.ExcludeLabel] != "" {
		t.Errorf("changed: %v %v", n.Annotations, n.Labels)
	}
}

// Where nothing can prove it, a Service lets the node go after its time, and that is said; a node that is to be left alone is.
func TestWithdrawWithoutProof(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.Service("web")
	s.EndpointsReady("web", 2)
	s.run(s.withdrawals())
	s.patchNode(s.nodes[0], autoscalersTaint)
	s.until("released", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool {
		return released(c, s.Namespace+"/web") && c.Services[s.Namespace+"/web"].ProofAt == nil
	})
	s.wantEvents("WithdrawUnproven: " + s.Namespace + "/web: nobody can prove the node out of")
	s.patchNode(s.nodes[1], `{"metadata":{"annotations":{"safedrain.dev/gate":"off"}}}`)
	s.patchNode(s.nodes[1], autoscalersTaint)
	pause(time.Second)
	if n := s.node(s.nodes[1]); n.Annotations[claim.Annotation] != "" || n.Spec.Unschedulable {
		t.Errorf("a node that the gate is to leave alone was claimed: %v", n.Annotations)
	}
}

// Who runs a withdrawal goes away in the middle of it, and whoever runs next ends it, under the same run.
func TestWithdrawSurvivesItsController(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	s.balancer.jam(true)
	stop := s.run(s.withdrawals())
	s.patchNode(s.nodes[0], autoscalersTaint)
	var run string
	s.until("begun", s.nodes[0], func(n *corev1.Node, c *claim.Claim) bool {
		if c != nil {
			run = c.Run
		}
		return c != nil && c.Phase == claim.Withdrawn && n.Labels[lbhooks.ExcludeLabel] == "true"
	})
	stop()
	if c, _ := claim.Of(s.node(s.nodes[0])); c.Services[s.Namespace+"/web"].Released {
		t.Errorf("let go without a proof: %v", c)
	}
	s.balancer.jam(false)
	s.run(s.withdrawals())
	s.until("released", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return released(c, s.Namespace+"/web") && c.Run == run })
}

// A proof that does not come: nobody is let go, that is said, and it is tried again.
func TestWithdrawTriesAgainForItsProof(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	s.balancer.jam(true)
	s.run(s.withdrawals(func(c *withdraw.Controller) { c.Options.HookTimeout = time.Second }))
	s.patchNode(s.nodes[0], autoscalersTaint)
	s.Wait("told", func(context.Context) (bool, string, error) {
		return slices.ContainsFunc(s.events.all(), func(e string) bool {
			return strings.Contains(e, "WithdrawUnproven: "+s.Namespace+"/web not proven out of test")
		}), fmt.Sprint(s.events.all()), nil
	})
	if c, _ := claim.Of(s.node(s.nodes[0])); c == nil || c.Services[s.Namespace+"/web"].Released {
		t.Errorf("claim %v", c)
	}
	s.balancer.jam(false)
	s.until("released", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return released(c, s.Namespace+"/web") })
}

// On its way back a node is emptied again: it stays out, and what was let go before may go on.
func TestWithdrawIsTakenUpWhileTheNodeReturns(t *testing.T) {
	s := newSmall(t, 2)
	s.on("web", "a", s.nodes[0])
	s.on("web", "b", s.nodes[1])
	s.behind("web")
	s.EndpointsReady("web", 2)
	s.run(s.withdrawals(func(c *withdraw.Controller) { c.Options.Closing = 20 * time.Second }))
	s.cordon(s.nodes[0], true)
	s.refused(s.nodes[0])
	s.until("released", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return released(c, s.Namespace+"/web") })
	s.cordon(s.nodes[0], false)
	s.until("closing", s.nodes[0], func(_ *corev1.Node, c *claim.Claim) bool { return c != nil && c.Phase == claim.Closing })
	s.cordon(s.nodes[0], true)
	s.refused(s.nodes[0])
	s.until("released again", s.nodes[0], func(n *corev1.Node, c *claim.Claim) bool {
		if n.Labels[lbhooks.ExcludeLabel] != "true" {
			t.Error("it was back in between")
		}
		return released(c, s.Namespace+"/web")
	})
}
