package metallb_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
)

func newDynamic() dynamic.Interface {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		metallb.L2Statuses:  "ServiceL2StatusList",
		metallb.BGPStatuses: "ServiceBGPStatusList",
		metallb.NodeStates:  "FRRNodeStateList",
	})
}

func target() lbhooks.Target {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "gw"}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
	return lbhooks.Target{Service: svc, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
}

func newBalancer(t *testing.T, kind metallbtest.Kind, noFRR bool) *metallbtest.Balancer {
	t.Helper()
	b := metallbtest.New(metallbtest.Config{
		Kind: kind, Dynamic: newDynamic(), Kubernetes: fake.NewClientset(), Target: target(), Other: "n2", NoFRR: noFRR,
	})
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestContract(t *testing.T) {
	for name, test := range map[string]struct {
		kind  metallbtest.Kind
		noFRR bool
	}{
		"l2":             {kind: metallbtest.L2},
		"bgp":            {kind: metallbtest.BGP},
		"bgp, no frr":    {kind: metallbtest.BGP, noFRR: true},
		"l2 and bgp":     {kind: metallbtest.Both},
		"both, no state": {kind: metallbtest.Both, noFRR: true},
	} {
		t.Run(name, func(t *testing.T) {
			hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newBalancer(t, test.kind, test.noFRR) })
		})
	}
}

// Sources: MetalLB internal/k8s/controllers/layer2_status_controller.go and bgp_status_controller.go; frr-k8s
// api/v1beta1/frr_node_state_types.go; measured: a status exists with its labels up to 90 ms before it is filled.
func TestProveEvidence(t *testing.T) {
	for name, test := range map[string]struct {
		kind   metallbtest.Kind
		state  hooktest.State
		out    bool
		says   string
		settle time.Duration // 0: the hook's own
	}{
		"l2 in":                      {kind: metallbtest.L2, state: hooktest.In, says: "metallb-system/l2-n1-gw still names n1"},
		"l2 moving":                  {kind: metallbtest.L2, state: hooktest.Moving, says: "still names n1"},
		"l2 label only":              {kind: metallbtest.L2, state: hooktest.Lying, says: "l2-new-gw still names n1"},
		"l2 nobody":                  {kind: metallbtest.L2, state: hooktest.Nobody, says: "no other node has taken over"},
		"l2 out":                     {kind: metallbtest.L2, state: hooktest.Out, out: true, says: "names n2 only"},
		"bgp in":                     {kind: metallbtest.BGP, state: hooktest.In, says: "ServiceBGPStatus metallb-system/bgp-n1-gw still names n1"},
		"bgp out, frr still runs it": {kind: metallbtest.BGP, state: hooktest.Lying, says: "FRRNodeState n1 still runs network 192.0.2.10/32"},
		"bgp out":                    {kind: metallbtest.BGP, state: hooktest.Out, out: true, says: "FRRNodeState runs no prefix", settle: 2 * time.Second},
		"both, l2 left":              {kind: metallbtest.Both, state: hooktest.Moving, says: "ServiceL2Status"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBalancer(t, test.kind, false)
			if err := b.Show(t.Context(), test.state); err != nil {
				t.Fatal(err)
			}
			p, err := b.Hook().Prove(t.Context(), b.Target())
			if err != nil {
				t.Fatal(err)
			}
			if p.Out != test.out || !strings.Contains(p.Evidence, test.says) {
				t.Errorf("Out %t, evidence %q; want %t and %q", p.Out, p.Evidence, test.out, test.says)
			}
			if got := settleOf(p); got != test.settle {
				t.Errorf("settle %s, want %s", got, test.settle)
			}
		})
	}
}

func settleOf(p lbhooks.Proof) time.Duration {
	if p.Settle == nil {
		return 0
	}
	return *p.Settle
}

// Two other nodes at once: nobody knows which of them will stay.
func TestProveTwoOthers(t *testing.T) {
	dyn := newDynamic()
	for _, node := range []string{"n2", "n3"} {
		here := target()
		here.Node.Name = node
		b := metallbtest.New(metallbtest.Config{Kind: metallbtest.L2, Dynamic: dyn, Target: here, Other: "unused", Namespace: "ns-" + node})
		if err := b.Show(t.Context(), hooktest.In); err != nil {
			t.Fatal(err)
		}
	}
	p, err := metallb.NewL2(nil, dyn).Prove(t.Context(), target())
	if err != nil || p.Out || !strings.Contains(p.Evidence, "n2 and n3") {
		t.Errorf("%+v, %v", p, err)
	}
}

// FRRNodeState is optional: where it cannot be read the status stands alone and FRR's debounce is waited for.
func TestProveWithoutFRRNodeState(t *testing.T) {
	for name, fault := range map[string]hooktest.Fault{"forbidden": hooktest.Forbidden, "not served": hooktest.NotServed} {
		t.Run(name, func(t *testing.T) {
			dyn := newDynamic()
			b := metallbtest.New(metallbtest.Config{Kind: metallbtest.BGP, Dynamic: dyn, Target: target(), Other: "n2"})
			if err := b.Show(t.Context(), hooktest.Lying); err != nil {
				t.Fatal(err)
			}
			faulty := metallbtest.NewFaulty(dyn)
			faulty.SetFor("frrnodestates", fault)
			p, err := metallb.NewBGP(nil, faulty).Prove(t.Context(), target())
			if err != nil || !p.Out || settleOf(p) != 5*time.Second || !strings.Contains(p.Evidence, "confirm") {
				t.Errorf("%+v, settle %s, %v", p, settleOf(p), err)
			}
		})
	}
}

// What a speaker announced stands while it hangs, whatever the statuses say.
func TestProveWithoutItsSpeaker(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	for name, test := range map[string]struct {
		speakerReady, nodeReady corev1.ConditionStatus
		state                   corev1.ContainerState
		out                     bool
		reason                  string
	}{
		"both Ready":        {corev1.ConditionTrue, corev1.ConditionTrue, running, true, "the status is the speaker's word"},
		"speaker not Ready": {corev1.ConditionFalse, corev1.ConditionTrue, running, false, "it may hang"},
		"speaker dead":      {corev1.ConditionFalse, corev1.ConditionTrue, waiting, true, "a dead speaker announces nothing"},
		"node not Ready":    {corev1.ConditionFalse, corev1.ConditionFalse, running, true, "there is nobody to wait for on a dead node"},
	} {
		for _, kind := range []metallbtest.Kind{metallbtest.L2, metallbtest.BGP} {
			t.Run(fmt.Sprintf("%s/%v", name, kind), func(t *testing.T) {
				speaker := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: "metallb-system", Name: "speaker-x", Labels: map[string]string{"app": "metallb", "component": "speaker"},
				}}
				speaker.Spec.NodeName, speaker.Status.Phase = "n1", corev1.PodRunning
				speaker.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: test.speakerReady}}
				speaker.Status.ContainerStatuses = []corev1.ContainerStatus{{State: test.state}}
				at := target()
				at.Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: test.nodeReady}}
				dyn := newDynamic()
				b := metallbtest.New(metallbtest.Config{Kind: kind, Dynamic: dyn, Target: at, Other: "n2"})
				if err := b.Show(t.Context(), hooktest.Out); err != nil {
					t.Fatal(err)
				}
				client := fake.NewClientset(speaker)
				hook := map[metallbtest.Kind]*metallb.Hook{metallbtest.L2: metallb.NewL2(client, dyn), metallbtest.BGP: metallb.NewBGP(client, dyn)}[kind]
				p, err := hook.Prove(t.Context(), at)
				if err != nil || p.Out != test.out {
					t.Errorf("%s: %+v, %v; want out %t", test.reason, p, err, test.out)
				}
			})
		}
	}
}

// A Service advertised both ways: an L2 status that may not be read is not taken for none.
func TestProveBothFailsClosed(t *testing.T) {
	b := newBalancer(t, metallbtest.BGP, false)
	if err := b.Show(t.Context(), hooktest.Out); err != nil {
		t.Fatal(err)
	}
	faulty := metallbtest.NewFaulty(newDynamic())
	faulty.SetFor("servicel2statuses", hooktest.Forbidden)
	if p, err := metallb.NewBGP(nil, faulty).Prove(t.Context(), target()); !errors.Is(err, lbhooks.ErrUnavailable) || p.Out {
		t.Errorf("%+v, %v", p, err)
	}
	faulty.SetFor("servicel2statuses", hooktest.NotServed)
	if p, err := metallb.NewBGP(nil, faulty).Prove(t.Context(), target()); err != nil || !p.Out {
		t.Errorf("MetalLB without L2 statuses: %+v, %v", p, err)
	}
}

// A speaker that wins takes the loser's status over and may lose the write of its content (seen with MetalLB v0.15.3): the
// label says who announces, once it has stood for some looks.
func TestProveTakenOver(t *testing.T) {
	dyn := newDynamic()
	b := metallbtest.New(metallbtest.Config{Kind: metallbtest.L2, Dynamic: dyn, Target: target(), Other: "n2"})
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	relabel(t, dyn, "l2-n1-gw", "n2")
	hook := b.Hook()
	for look := 1; look <= 2; look++ {
		p, err := hook.Prove(t.Context(), target())
		if err != nil || p.Out != (look == 2) || p.Out && p.By != "n2" {
			t.Errorf("look %d: %+v, %v: the second shows that it stays", look, p, err)
		}
	}
	client := dyn.Resource(metallb.L2Statuses).Namespace("metallb-system")
	u, err := client.Get(t.Context(), "l2-n1-gw", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u.SetName("l2-again")
	u.SetLabels(map[string]string{metallb.LabelNode: "n1", metallb.LabelServiceName: "gw", metallb.LabelServiceNamespace: "e"})
	if _, err := client.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if p, err := hook.Prove(t.Context(), target()); err != nil || p.Out {
		t.Errorf("%+v, %v: another status names the node", p, err)
	}
}

func relabel(t *testing.T, dyn dynamic.Interface, name, node string) {
	t.Helper()
	client := dyn.Resource(metallb.L2Statuses).Namespace("metallb-system")
	u, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set := u.GetLabels()
	set[metallb.LabelNode] = node
	u.SetLabels(set)
	if _, err := client.Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A status whose label and status disagree is not to be trusted: either of them keeps the node in.
func TestProveLabelDisagrees(t *testing.T) {
	b := newBalancer(t, metallbtest.L2, false)
	dyn := newDynamic()
	other := metallbtest.New(metallbtest.Config{Kind: metallbtest.L2, Dynamic: dyn, Target: b.Target(), Other: "n2"})
	if err := other.Show(t.Context(), hooktest.Out); err != nil {
		t.Fatal(err)
	}
	client := dyn.Resource(metallb.L2Statuses).Namespace("metallb-system")
	u, err := client.Get(t.Context(), "l2-n2-gw", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set := u.GetLabels()
	set[metallb.LabelNode] = "n1"
	u.SetLabels(set)
	if _, err := client.Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if p, err := other.Hook().Prove(t.Context(), target()); err != nil || p.Out {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestProveOffline(t *testing.T) {
	if _, err := metallb.NewL2(nil, nil).Prove(context.Background(), target()); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// A dead speaker's status stays until its pod is collected: the evidence says what is wrong with the speaker.
func TestProveNamesTheSpeaker(t *testing.T) {
	crash := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "speaker-x"}}
	crash.Status.Phase = corev1.PodRunning
	crash.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	ready := crash.DeepCopy()
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for name, test := range map[string]struct {
		pods   []runtime.Object
		says   string
		silent bool
	}{
		"gone":         {says: "speaker-x is gone, the status is left over"},
		"crash looped": {pods: []runtime.Object{crash}, says: "speaker-x is not Ready: CrashLoopBackOff"},
		"ready":        {pods: []runtime.Object{ready}, says: "still names n1", silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			dyn := newDynamic()
			b := metallbtest.New(metallbtest.Config{Kind: metallbtest.L2, Dynamic: dyn, Target: target(), Other: "n2"})
			if err := b.Show(t.Context(), hooktest.In); err != nil {
				t.Fatal(err)
			}
			own(t, dyn, "l2-n1-gw")
			p, err := metallb.NewL2(fake.NewClientset(test.pods...), dyn).Prove(t.Context(), target())
			if err != nil || p.Out || !strings.Contains(p.Evidence, test.says) {
				t.Errorf("%+v, %v; want %q", p, err, test.says)
			}
			if test.silent && strings.Contains(p.Evidence, "speaker-x") {
				t.Errorf("a speaker that is well is mentioned: %s", p.Evidence)
			}
		})
	}
}

// own makes the speaker's pod the owner of a status, as speakers do.
func own(t *testing.T, dyn dynamic.Interface, name string) {
	t.Helper()
	client := dyn.Resource(metallb.L2Statuses).Namespace("metallb-system")
	u, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "speaker-x", UID: "1"}})
	if _, err := client.Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
