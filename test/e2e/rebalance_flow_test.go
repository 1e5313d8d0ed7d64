package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/controlplane"
)

// evenly keeps the numbers of a Deployment's pods on the nodes that take any within one of each other.
func evenly(d *appsv1.Deployment) {
	honor := corev1.NodeInclusionPolicyHonor
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, NodeTaintsPolicy: &honor,
		LabelSelector: d.Spec.Selector,
	}}
}

// TestRebalance: three pods on three nodes, of which a drain leaves 2+1+0 and nothing moves one back. With --rebalance one of
// the two is evicted, its replacement comes to the node that is back, and only then does that enter rotation.
func TestRebalance(t *testing.T) {
	s := newScene(t, 3, onLoopback)
	n1 := s.nodes[0]
	s.metalLB(s.nodes...)
	s.Deployment("gw", 3, evenly, controlplane.Template(map[string]string{controlplane.ReadyAfter: "2"}))
	svc := s.loadBalancer(metallbtest.L2, "gw", localPolicy)
	s.EndpointsReady("gw", 3)
	var knows atomic.Bool // whether kube-proxy on n1 knows the new pod
	s.checkPort(svc, n1, func(code int) int {
		if !knows.Load() {
			return http.StatusServiceUnavailable
		}
		return code
	})
	s.speakers(metallbtest.L2, svc, n1, s.nodes[1], lbStep{100 * time.Millisecond, hooktest.Out})
	s.remember()
	s.run(n1, "--ignore-daemonsets", "--wait-replacements").want(s, 0)
	if len(s.podsOn("gw", n1)) != 0 {
		t.Fatal("the node is not empty")
	}

	back := s.start("uncordon", n1, "--rebalance", "--wait-timeout=100s", "-o", "json")
	s.Wait("a pod comes to "+n1, func(context.Context) (bool, string, error) { return len(s.podsOn("gw", n1)) == 1, "none", nil })
	s.holds(n1, false, true, true)
	knows.Store(true)
	e := back.end(s)
	e.want(s, 0, "comes to node/"+n1, "kube-proxy knows its pod")
	for _, n := range s.nodes {
		if on := s.podsOn("gw", n); len(on) != 1 {
			t.Errorf("pods on %s: %v, want one", n, on)
		}
	}
	var report struct {
		Nodes []struct {
			Moved []struct{ Service, To string }
		}
	}
	if err := json.Unmarshal([]byte(e.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if m := report.Nodes[0].Moved; len(m) != 1 || m[0].Service != s.Namespace+"/gw" || m[0].To != n1 {
		t.Errorf("moved: %+v", m)
	}
	s.standsAsBefore(n1)
}

// TestRebalanceElsewhere: the scheduler prefers another node for the new pod. One eviction is all that is tried, and it is
// said.
func TestRebalanceElsewhere(t *testing.T) {
	s := newScene(t, 2)
	n1, n2 := s.nodes[0], s.nodes[1]
	s.patchNode(n1, `{"spec":{"unschedulable":true}}`, "test") // so that both pods come to n2
	s.Deployment("p", 2, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{n2}}},
			}}},
		}}
	})
	s.Service("p")
	s.EndpointsReady("p", 2)
	before := strings.Join(s.podsOn("p", n2), " ")
	e := s.run("uncordon", n1, "--rebalance", "--wait-timeout=100s")
	e.want(s, 0, "the scheduler put p-", "not on "+n1+"; it is not tried again")
	s.PodsReady("p", 2)
	stayed := 0
	for _, name := range s.podsOn("p", n2) {
		if strings.Contains(before, name) {
			stayed++
		}
	}
	if stayed != 1 {
		t.Errorf("of %s %d are left, want one", before, stayed)
	}
	s.Wait("the one that was evicted is gone", func(ctx context.Context) (bool, string, error) {
		list, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 2, "not 2 pods", err
	})
}
