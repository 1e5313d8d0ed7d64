package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/controlplane"
)

// l2CRD is as much of MetalLB as a Service needs to be recognised, and a node to be proven out.
const l2CRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicel2statuses.metallb.io}
spec:
  group: metallb.io
  names: {kind: ServiceL2Status, listKind: ServiceL2StatusList, plural: servicel2statuses, singular: servicel2status}
  scope: Namespaced
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {status: {}}
`

var installL2 sync.Once

// step is a point of a drain that a test can hold it at.
type step struct {
	scene *scene
	says  string   // what the drain says when it is there
	args  []string // that make the step long
	free  func()   // lets the drain go on to its end
}

// scene is a drain that passes every step: web serves on the first node and on another one, behind MetalLB by L2, and the
// first node has a pod that no Service needs.
type scene struct {
	*controlplane.Env
	node, other string
	before      *corev1.Node
	balancer    *metallbtest.Balancer
}

func newScene(t *testing.T, mutate ...func(*corev1.Pod)) *scene {
	t.Helper()
	t.Parallel()
	installL2.Do(func() {
		program := program{path: kubectlBin, kubeconfig: kubeconfig, stdin: l2CRD}
		if _, stderr, code := program.run(t, "apply", "-f", "-"); code != 0 {
			t.Fatal(stderr)
		}
		kubectl(t, "wait", "--for=condition=Established", "crd/servicel2statuses.metallb.io", "--timeout=30s")
	})
	e := cluster.Env(t)
	nodes := e.Nodes(2)
	s := &scene{Env: e, node: nodes[0], other: nodes[1]}
	for i, node := range nodes {
		e.Pod(fmt.Sprintf("web-%d", i), node, labelled(controlplane.AppLabel, "web"))
	}
	e.Pod("batch", s.node, mutate...)
	s.serve()
	s.before = getNode(e, s.node)
	return s
}

// serve makes the Service and the balancer, which sends to the node.
func (s *scene) serve() {
	s.Helper()
	svc := s.Service("web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer })
	s.ServiceStatus(svc, "203.0.113.10")
	s.EndpointsReady("web", 2)
	svc, err := s.Client.CoreV1().Services(s.Namespace).Get(s.Context(), "web", metav1.GetOptions{})
	must(s.Env, err)
	client, err := dynamic.NewForConfig(s.Cluster.Config())
	must(s.Env, err)
	s.balancer = metallbtest.New(metallbtest.Config{
		Kind: metallbtest.L2, Dynamic: client, Kubernetes: s.Client, Namespace: s.Namespace,
		Target: lbhooks.Target{Service: svc, Node: getNode(s.Env, s.node)}, Other: s.other,
	})
	s.show(hooktest.In)
}

// show says where the balancer sends.
func (s *scene) show(state hooktest.State) {
	s.Helper()
	must(s.Env, s.balancer.Show(s.Context(), state))
}

// obey makes the balancer follow the label on the node, as MetalLB does, until the test ends.
func (s *scene) obey() {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		shown := hooktest.In
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			node, err := s.Client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
			if err != nil {
				return false, nil //nolint:nilerr // it may be gone, or the API server away
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
	"cordoned, and the balancer still sends": func(t *testing.T) *step {
		s := newScene(t)
		return &step{scene: s, says: "node/" + s.node + " cordoned", free: s.obey}
	},
	"proving": func(t *testing.T) *step {
		s := newScene(t)
		return &step{scene: s, says: "web leaving metallb-l2", free: s.obey}
	},
	"settling": func(t *testing.T) *step {
		s := newScene(t)
		s.obey()
		return &step{scene: s, says: "settling 3s", args: []string{"--settle=3s"}, free: func() {}}
	},
	"evicting, and a pod terminates": func(t *testing.T) *step {
		s := newScene(t, terminatesAfter(6))
		s.obey()
		return &step{scene: s, says: "evicting 1 pod of " + s.Namespace + "/web", args: []string{"--settle=0s"}, free: func() {}}
	},
	"evicting, and a budget holds a pod": func(t *testing.T) *step {
		s := newScene(t, controlplane.With(map[string]string{controlplane.Ready: "false"}))
		s.obey()
		s.Pod("batch-2", s.other, labelled(controlplane.AppLabel, "batch"))
		s.Budget("batch", intstr.FromInt32(1))
		return &step{scene: s, says: "held by budget " + s.Namespace + "/batch", free: func() {
			annotate(s.Env, "batch", controlplane.Ready, "true")
		}}
	},
	"before it verifies": func(t *testing.T) *step {
		s := newScene(t)
		s.obey()
		return &step{scene: s, says: "pod/web-0 evicted", args: []string{"--settle=0s"}, free: func() {}}
	},
}

// wantRestored waits until the node is exactly as it was before the drain. The server's own taint follows a cordon, and its
// end, by a moment.
func (s *scene) wantRestored() {
	s.Helper()
	s.Wait("node as before", func(context.Context) (bool, string, error) {
		after := getNode(s.Env, s.node)
		return len(after.Spec.Taints) == len(s.before.Spec.Taints), "tainted", nil
	})
	wantNodeAsBefore(s.Env, s.before, getNode(s.Env, s.node))
}

// wantDrained says what a drain that ended well leaves.
func (s *scene) wantDrained() {
	s.Helper()
	if pods := podsOn(s.Env, s.node); len(pods) != 0 {
		s.Errorf("%d pods are left on the node", len(pods))
	}
	node := getNode(s.Env, s.node)
	if !node.Spec.Unschedulable || node.Labels[lbhooks.ExcludeLabel] != "true" || node.Annotations["safedrain.dev/drain"] == "" {
		s.Errorf("the node is not cordoned, labelled and claimed: %+v", stateOf(node))
	}
}
