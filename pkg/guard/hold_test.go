package guard

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// heldWorld is a world that was loaded for holds: pods app=web, of ReplicaSet rs, which selects by app.
type heldWorld struct {
	*world
	facts *HoldFacts
}

var _ HoldIndex = (*heldWorld)(nil)

func (w *heldWorld) HoldFacts(namespace string) (*HoldFacts, bool) {
	return w.facts, w.facts != nil && namespace == "a"
}

// newHeldWorld has pod web1 on n1, web2 on n2, and Service s in front, by these labels of its selector.
func newHeldWorld(selector map[string]string) *heldWorld {
	w := &heldWorld{world: newWorld("n1", "n2"), facts: &HoldFacts{Owners: map[types.UID]*metav1.LabelSelector{
		"rs-uid": {MatchLabels: map[string]string{"app": "web"}},
	}}}
	of := func(p *corev1.Pod) {
		p.OwnerReferences[0].UID = "rs-uid"
		p.Labels["tier"] = "edge"
	}
	w.pod("n1", "web1", of).pod("n2", "web2", of)
	w.service("s", all(checkedByHook, func(s *ServiceFacts) { s.Selector = selector }), "n1:RS=web1", "n2:RS=web2")
	return w
}

// checkedByHook is as the hook health-check states it: in rotation where an endpoint is ready.
func checkedByHook(s *ServiceFacts) {
	checked(s)
	s.Type, s.HealthCheckPort = corev1.ServiceTypeLoadBalancer, 32000
	s.Rotation.Follows = true
	s.Rotation.Rest = Seat{In: No, Eligible: true}
	s.Rotation.Seats = map[string]Seat{}
	for _, e := range s.Ports[0].Endpoints {
		if e.Ready {
			s.Rotation.Seats[e.Node] = Seat{In: Yes, Eligible: true}
		}
	}
}

func (w *heldWorld) holdPlan(flags Flags) (DrainPlan, *ServicePlan) {
	flags.GracePeriod = -1
	p := Plan(w, Request{Nodes: []string{"n1"}, Run: "me", Flags: flags})
	for i := range p.Services {
		if p.Services[i].Name == "s" {
			return p, &p.Services[i]
		}
	}
	return p, nil
}

func asked() Flags { return Flags{Hold: []string{"a/s"}} }

// budgetOf is a budget over app=web with this allowance.
func budgetOf(allowed int32, labels map[string]string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, ExpectedPods: 9, CurrentHealthy: 9, DesiredHealthy: 9 - allowed},
	}
}

var (
	byApp  = map[string]string{"app": "web"}
	byBoth = map[string]string{"app": "web", "tier": "edge"}
)

// TestHoldLabel: which label is changed, whether that can be undone, and who is named.
func TestHoldLabel(t *testing.T) {
	for name, tc := range map[string]struct {
		selector map[string]string
		change   func(*heldWorld)
		label    string
		exact    bool
		says     string // of HoldLimited; "" for none
	}{
		"the only one":               {byApp, nil, "app", false, "ReplicaSet rs lets the pods go"},
		"one that the owner ignores": {byBoth, nil, "tier", true, ""},
		"an owner that selects by an expression": {byBoth, func(w *heldWorld) {
			w.facts.Owners["rs-uid"] = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"edge"}},
			}}
		}, "app", true, ""},
		"an owner that only wants the label to be there": {byApp, func(w *heldWorld) {
			w.facts.Owners["rs-uid"] = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpExists},
			}}
		}, "app", true, ""},
		"no owner": {byApp, func(w *heldWorld) { w.pods[0].OwnerReferences = nil }, "app", true, ""},
		"another Service by the other label": {byBoth, func(w *heldWorld) {
			w.service("t", func(s *ServiceFacts) { s.External, s.Selector = false, map[string]string{"tier": "edge"} }, "n1:RS=web1")
		}, "tier", true, "Service a/t selects by it too"},
		"a headless Service": {byBoth, func(w *heldWorld) {
			w.facts.Headless = []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "h"}, Spec: corev1.ServiceSpec{Selector: byBoth}}}
		}, "tier", true, "headless Service a/h no longer"},
		"a budget by the label": {byBoth, func(w *heldWorld) { w.budgets = append(w.budgets, budgetOf(1, byBoth)) }, "tier", true, "budget a/b no longer counts"},
		"a NetworkPolicy by the other label": {byBoth, func(w *heldWorld) {
			w.facts.Policies = []*networkingv1.NetworkPolicy{policyBy(map[string]string{"tier": "edge"})}
		}, "app", false, "ReplicaSet rs lets the pods go"},
		"a NetworkPolicy of all pods": {byBoth, func(w *heldWorld) {
			w.facts.Policies = []*networkingv1.NetworkPolicy{policyBy(nil)}
		}, "tier", true, ""},
		"held already by the worse label": {byBoth, func(w *heldWorld) { w.hold(0, "app", true) }, "app", false, "of web1 lets the pods go"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeldWorld(tc.selector)
			if tc.change != nil {
				tc.change(w)
			}
			flags := asked()
			flags.Force = true
			p, s := w.holdPlan(flags)
			if p.Verdict != Withdraw || s.Balancer.Removal != RemovalHold || s.Hold == nil {
				t.Fatalf("verdict %s, removal %s, findings %v", p.Verdict, s.Balancer.Removal, s.Findings)
			}
			if s.Hold.Label != tc.label || s.Hold.Exact != tc.exact || s.Hold.Wait != "26s" || cmp.Diff([]string{"a/web1"}, s.Hold.Pods) != "" {
				t.Errorf("hold %+v, want label %s, exact %t, 26s, web1", s.Hold, tc.label, tc.exact)
			}
			if got := saidOf(s, HoldLimited); (tc.says == "") != (got == "") || !strings.Contains(got, tc.says) {
				t.Errorf("HoldLimited says %q, want %q", got, tc.says)
			}
			if got := saidOf(s, GraceTooShort); got != "" {
				t.Errorf("a hold makes up for the grace, but: %s", got)
			}
			if len(p.Pods) == 0 || cmp.Diff([]string{"a/s"}, p.Pods[0].After) != "" {
				t.Errorf("pods %+v: web1 waits for the Service", p.Pods)
			}
		})
	}
}

func policyBy(labels map[string]string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "np"},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: labels}},
	}
}

// hold makes a pod held, as a run does: its label changed, its endpoint in a slice that says terminating.
func (w *heldWorld) hold(i int, key string, forward bool) {
	p := w.pods[i]
	p.Annotations = map[string]string{AnnotationHeld: Held{Run: "r", Labels: map[string]string{key: p.Labels[key]}, Forward: forward}.String()}
	p.Labels[key] = HeldValue(p.UID)
	if forward {
		p.OwnerReferences = nil
	}
	s := w.services[Key{"a", "s"}]
	for k := range s.Ports[0].Endpoints {
		if e := &s.Ports[0].Endpoints[k]; e.Pod == p.UID {
			e.Ready, e.Terminating = false, true
			delete(s.Rotation.Seats, e.Node)
		}
	}
}

func saidOf(s *ServicePlan, code Code) string {
	for _, f := range s.Findings {
		if f.Code == code {
			return f.Message
		}
	}
	return ""
}

// TestHoldAgainst: what cannot be held, each with its reason; the Service is Unproven then.
func TestHoldAgainst(t *testing.T) {
	svc := func(change func(*ServiceFacts)) func(*heldWorld) {
		return func(w *heldWorld) { change(w.services[Key{"a", "s"}]) }
	}
	owner := func(kind string) func(*heldWorld) {
		return func(w *heldWorld) {
			for _, p := range w.pods {
				p.OwnerReferences[0].Kind = kind
			}
			w.daemonSets[Key{"a", "rs"}] = true
		}
	}
	for name, tc := range map[string]struct {
		change  func(*heldWorld)
		flags   func(*Flags)
		says    string
		code    Code
		verdict Verdict
	}{
		"not loaded":             {func(w *heldWorld) { w.facts = nil }, nil, "were not read", HoldLimited, Unproven},
		"a StatefulSet":          {owner("StatefulSet"), nil, "StatefulSet rs would wait", HoldLimited, Unproven},
		"a DaemonSet":            {owner("DaemonSet"), func(f *Flags) { f.IgnoreDaemonSets = true }, "DaemonSet rs would start another", HoldLimited, Unproven},
		"an owner of its own":    {owner("CloneSet"), nil, "CloneSet rs makes of a changed label", HoldLimited, Unproven},
		"an unknown ReplicaSet":  {func(w *heldWorld) { w.facts.Owners = nil }, nil, "selector of ReplicaSet rs", HoldLimited, Unproven},
		"publishNotReady":        {svc(func(s *ServiceFacts) { s.PublishNotReady = true }), nil, "keeps the health check at 200", HoldLimited, Unproven},
		"counts serving":         {svc(func(s *ServiceFacts) { s.Rotation.FollowsServing = true }), nil, "counts endpoints that serve", HoldLimited, Unproven},
		"no check is known":      {svc(func(s *ServiceFacts) { s.Rotation.HealthCheck = nil }), nil, "nothing says that its balancer checks", HoldLimited, Unproven},
		"no port":                {svc(func(s *ServiceFacts) { s.HealthCheckPort = 0 }), nil, "no healthCheckNodePort", HoldLimited, Unproven},
		"resets connections":     {svc(func(s *ServiceFacts) { s.Rotation.HealthCheck.Resets = "resets them" }), nil, "resets them", HoldLimited, Unproven},
		"a foreign endpoint":     {svc(func(s *ServiceFacts) { s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, parseEndpoint("n1:RS", 7)) }), nil, "is no pod that could be held", HoldLimited, Unproven},
		"a budget":               {func(w *heldWorld) { w.budgets = append(w.budgets, budgetOf(0, byApp)) }, nil, "allows no eviction", HoldLimited, Unsafe},
		"a budget for one":       {func(w *heldWorld) { w.second(); w.budgets = append(w.budgets, budgetOf(1, byApp)) }, nil, "allows 1 of the 2 pods", HoldLimited, Unproven},
		"a budget, bypassed":     {func(w *heldWorld) { w.second(); w.budgets = append(w.budgets, budgetOf(1, byApp)) }, func(f *Flags) { f.DisableEviction = true }, "goes only forward", HoldLimited, Withdraw},
		"every label is policed": {func(w *heldWorld) { w.facts.Policies = []*networkingv1.NetworkPolicy{policyBy(byApp)} }, nil, "NetworkPolicy a/np selects by label app", HoldLimited, Unproven},
		"a peer is policed":      {func(w *heldWorld) { w.facts.Policies = []*networkingv1.NetworkPolicy{peerBy("b", byApp)} }, nil, "NetworkPolicy b/np selects by label app", HoldLimited, Unproven},
		"a permission":           {func(w *heldWorld) { w.facts.Denied = []string{"patch pods"} }, nil, "may not patch pods", HookUnavailable, Unproven},
		"all does not cover it":  {func(w *heldWorld) { w.facts.Denied = []string{"patch pods"} }, func(f *Flags) { f.AcceptUnproven = []string{"all"} }, "may not patch pods", HookUnavailable, Unproven},
		"a pod stays":            {func(*heldWorld) {}, nil, "pod web1 is not evicted", HoldLimited, Unproven},
		"a hook proves":          {svc(func(s *ServiceFacts) { s.Rotation.Provable = true }), nil, "withdraws the node and proves it", HoldLimited, Withdraw},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeldWorld(byApp)
			tc.change(w)
			flags := asked()
			if tc.flags != nil {
				tc.flags(&flags)
			}
			flags.GracePeriod = -1
			req := Request{Nodes: []string{"n1"}, Run: "me", Flags: flags}
			if name == "a pod stays" {
				req.SkipPod = func(map[string]string) bool { return true }
			}
			p := Plan(w, req)
			s := &p.Services[0]
			if got := saidOf(s, tc.code); !strings.Contains(got, tc.says) || p.Verdict != tc.verdict {
				t.Errorf("verdict %s, %s says %q; want %s and %q\n%v", p.Verdict, tc.code, got, tc.verdict, tc.says, s.Findings)
			}
			if held := s.Hold != nil; held != (tc.verdict == Withdraw && name != "a hook proves") {
				t.Errorf("hold %+v", s.Hold)
			}
		})
	}
}

// second adds another pod of the Service on n1.
func (w *heldWorld) second() {
	w.pod("n1", "web3", func(p *corev1.Pod) { p.OwnerReferences[0].UID = "rs-uid" })
	s := w.services[Key{"a", "s"}]
	s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, parseEndpoint("n1:RS=web3", 5))
}

func peerBy(namespace string, labels map[string]string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "np"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			PodSelector: &metav1.LabelSelector{MatchLabels: labels}, NamespaceSelector: &metav1.LabelSelector{},
		}}}}},
	}
}

// TestHoldAsked: a flag, the annotation or a hold that was begun asks; all asks only where a check is known, and nothing
// is said of Services that do not need it.
func TestHoldAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		flags   []string
		change  func(*heldWorld)
		removal Removal
		limited bool
	}{
		"nobody":                   {nil, func(*heldWorld) {}, RemovalHealthCheck, false},
		"another":                  {[]string{"a/t"}, func(*heldWorld) {}, RemovalHealthCheck, false},
		"by name":                  {[]string{"a/s"}, func(*heldWorld) {}, RemovalHold, true},
		"all":                      {[]string{"all"}, func(*heldWorld) {}, RemovalHold, true},
		"all, no check":            {[]string{"all"}, func(w *heldWorld) { w.services[Key{"a", "s"}].Rotation.HealthCheck = nil }, RemovalHealthCheck, false},
		"annotation":               {nil, func(w *heldWorld) { w.services[Key{"a", "s"}].Hold = true }, RemovalHold, true},
		"begun":                    {nil, func(w *heldWorld) { w.hold(0, "app", true) }, RemovalHold, true},
		"the pods outlive it":      {[]string{"a/s"}, func(w *heldWorld) { sleeps(60, 90)(w.pods[0]) }, RemovalHealthCheck, false},
		"held, and on its way out": {nil, func(w *heldWorld) { w.hold(0, "app", true); w.pods[0].DeletionTimestamp = &metav1.Time{} }, RemovalHealthCheck, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeldWorld(byApp)
			tc.change(w)
			_, s := w.holdPlan(Flags{Hold: tc.flags})
			if s.Balancer.Removal != tc.removal || (saidOf(s, HoldLimited) != "") != tc.limited {
				t.Errorf("removal %s, findings %v; want %s, limited %t", s.Balancer.Removal, s.Findings, tc.removal, tc.limited)
			}
		})
	}
}

// TestHeldPods: a pod that a hold took from its owner is ours and no bare pod; --pod-selector sees the labels that it had.
func TestHeldPods(t *testing.T) {
	w := newHeldWorld(byApp)
	w.hold(0, "app", true)
	req := Request{Nodes: []string{"n1"}, Run: "me", Flags: Flags{GracePeriod: -1}}
	req.SkipPod = func(l map[string]string) bool { return l["app"] != "web" }
	p := Plan(w, req)
	if len(p.Findings) != 0 || p.Pods[0].Action != ActionEvict {
		t.Errorf("pod %+v, findings %v", p.Pods[0], p.Findings)
	}
	w.pods[0].Annotations = nil
	if p = Plan(w, Request{Nodes: []string{"n1"}, Run: "me", Flags: Flags{GracePeriod: -1}}); len(p.Findings) == 0 {
		t.Error("a bare pod is none of ours")
	}
}

// TestHeldOf: the annotation reads as it was written; one that cannot be read is taken for a hold that is not undone.
func TestHeldOf(t *testing.T) {
	want := Held{V: 1, Run: "r", Node: "n1", Labels: map[string]string{"app": "web"}, Forward: true}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationHeld: want.String()}}}
	if got, ok := HeldOf(pod); !ok || cmp.Diff(want, got) != "" {
		t.Errorf("%v, %+v", ok, got)
	}
	pod.Annotations[AnnotationHeld] = "nonsense"
	if got, ok := HeldOf(pod); !ok || !got.Forward {
		t.Errorf("%v, %+v", ok, got)
	}
}
