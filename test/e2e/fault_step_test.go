package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/controlplane"
)

// step is a point of a drain that a test can hold it at. The drain passes every one: web serves on the victim and on another
// node, behind MetalLB by L2, and the victim has a pod that no Service needs.
type step struct {
	*scene
	victim, other string
	balancer      *metallbtest.Balancer
	says          string   // what the drain says when it is there
	flags         []string // that make the step long
	free          func()   // lets the drain go on to its end
}

func newStep(t *testing.T, mutate ...func(*corev1.Pod)) *step {
	t.Helper()
	s := &step{scene: newScene(t, 2), free: func() {}}
	s.victim, s.other = s.nodes[0], s.nodes[1]
	s.metalLB(s.nodes...)
	for i, node := range s.nodes {
		s.pod("web", fmt.Sprintf("web-%d", i), node)
	}
	s.pod("batch", "batch-0", s.victim, mutate...)
	svc := s.loadBalancer(metallbtest.L2, "web", corev1.ServiceExternalTrafficPolicyLocal)
	s.EndpointsReady("web", 2)
	s.balancer = metallbtest.New(metallbtest.Config{
		Kind: metallbtest.L2, Dynamic: s.dynamic, Kubernetes: s.Client, Other: s.other, Namespace: s.Namespace,
		Target: lbhooks.Target{Service: svc, Node: s.node(s.victim)},
	})
	must(s.Env, s.balancer.Show(s.Context(), hooktest.In))
	s.remember()
	return s
}

// obey makes the balancer follow the label on the node, as MetalLB does, until the test ends. Before, it sends to the node
// whatever happens.
func (s *step) obey() {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	shown := hooktest.In
	go func() {
		defer close(done)
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			node, err := s.Client.CoreV1().Nodes().Get(ctx, s.victim, metav1.GetOptions{})
			if err != nil {
				return false, nil //nolint:nilerr // it may be deleted, or the API server away
			}
			want := hooktest.In
			if node.Labels[lbhooks.ExcludeLabel] == "true" {
				want = hooktest.Out
			}
			if want != shown && s.balancer.Show(ctx, want) == nil {
				shown = want
			}
			return false, nil
		})
	}()
	s.Cleanup(func() { cancel(); <-done })
}

// steps are the points of a drain, by name. Each makes its own scene.
var steps = map[string]func(*testing.T) *step{
	"cordoned": func(t *testing.T) *step {
		s := newStep(t)
		s.says, s.free = "node/"+s.victim+" cordoned", s.obey
		return s
	},
	"proving": func(t *testing.T) *step {
		s := newStep(t)
		s.says, s.free = "web leaving metallb-l2", s.obey
		return s
	},
	"settling": func(t *testing.T) *step {
		s := newStep(t)
		s.says, s.flags = "settling 30s", []string{"--settle=30s"}
		s.free = func() { s.flags = []string{"--settle=0s"} }
		s.obey()
		return s
	},
	"evicting and a pod terminates": func(t *testing.T) *step {
		s := newStep(t, controlplane.With(map[string]string{controlplane.TerminatesAfter: "never"}))
		s.says, s.flags = "evicting 1 pod of "+s.Namespace+"/web", []string{"--settle=0s"}
		s.free = func() { s.end("batch-0") }
		s.obey()
		return s
	},
	"evicting and a budget holds": func(t *testing.T) *step {
		s := newStep(t)
		s.pod("batch", "batch-1", s.other, controlplane.With(map[string]string{controlplane.Ready: "false"}))
		s.Budget("batch", intstr.FromInt32(1))
		s.says, s.free = "held by budget "+s.Namespace+"/batch", func() {
			annotate(s.Env, "batch-1", controlplane.Ready, "true")
		}
		s.obey()
		return s
	},
	"before it verifies": func(t *testing.T) *step {
		s := newStep(t)
		s.says, s.flags = "pod/web-0 evicted", []string{"--settle=0s"}
		s.obey()
		return s
	},
}

// command is the drain of the victim.
func (s *step) command(flags ...string) []string {
	return append(append([]string{s.victim, "--force", "--ignore-daemonsets"}, s.flags...), flags...)
}

// reach starts the drain and returns when it is at the step.
func (s *step) reach(flags ...string) *begun {
	s.Helper()
	b := begin(s, s.command(flags...)...)
	b.says(s.Env, s.says)
	return b
}

// drained says what a drain that ended well leaves.
func (s *step) drained() {
	s.Helper()
	if pods := podsOn(s.Env, s.victim); len(pods) != 0 {
		s.Errorf("%d pods are left on the node", len(pods))
	}
	s.holds(s.victim, true, true, true)
}

// undo takes back what the drain set, and nothing else.
func (s *step) undo() {
	s.Helper()
	s.back(s.victim)
}
