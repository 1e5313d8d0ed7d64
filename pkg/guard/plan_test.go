package guard

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func owner(kind, apiVersion, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, Controller: &yes}}
	}
}

func bare(p *corev1.Pod) { p.OwnerReferences = nil }

func emptyDir(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = ph } }

func dying(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }

func mirror(p *corev1.Pod) {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1"}}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

// TestPods holds kubectl drain's filters: which pods go, which stay, which stop the drain, and by which flag they do not.
func TestPods(t *testing.T) {
	daemon := owner("DaemonSet", "apps/v1", "d")
	orphan := owner("DaemonSet", "apps/v1", "gone")
	for name, tc := range map[string]struct {
		change []func(*corev1.Pod)
		flags  Flags
		action Action
		want   []string
	}{
		"ReplicaSet":                     {nil, Flags{}, ActionEvict, []string{}},
		"Job":                            {[]func(*corev1.Pod){owner("Job", "batch/v1", "j")}, Flags{}, ActionEvict, []string{}},
		"custom resource":                {[]func(*corev1.Pod){owner("Broker", "example.com/v1", "b")}, Flags{}, ActionEvict, []string{}},
		"without evictions":              {nil, Flags{DisableEviction: true}, ActionDelete, []string{}},
		"bare":                           {[]func(*corev1.Pod){bare}, Flags{}, ActionRefuse, []string{"UnmanagedPod:Block a/p1"}},
		"bare, forced":                   {[]func(*corev1.Pod){bare}, Flags{Force: true}, ActionEvict, []string{}},
		"bare, finished":                 {[]func(*corev1.Pod){bare, phase(corev1.PodSucceeded)}, Flags{}, ActionEvict, []string{}},
		"bare with emptyDir":             {[]func(*corev1.Pod){bare, emptyDir}, Flags{}, ActionRefuse, []string{"LocalStorage:Block a/p1", "UnmanagedPod:Block a/p1"}},
		"emptyDir":                       {[]func(*corev1.Pod){emptyDir}, Flags{}, ActionRefuse, []string{"LocalStorage:Block a/p1"}},
		"emptyDir, only forced":          {[]func(*corev1.Pod){emptyDir}, Flags{Force: true}, ActionRefuse, []string{"LocalStorage:Block a/p1"}},
		"emptyDir, deleted":              {[]func(*corev1.Pod){emptyDir}, Flags{DeleteEmptyDirData: true}, ActionEvict, []string{}},
		"emptyDir, failed":               {[]func(*corev1.Pod){emptyDir, phase(corev1.PodFailed)}, Flags{}, ActionEvict, []string{}},
		"DaemonSet":                      {[]func(*corev1.Pod){daemon}, Flags{}, ActionRefuse, []string{"DaemonSetPod:Block a/p1"}},
		"DaemonSet, ignored":             {[]func(*corev1.Pod){daemon}, Flags{IgnoreDaemonSets: true}, ActionSkip, []string{}},
		"DaemonSet with emptyDir":        {[]func(*corev1.Pod){daemon, emptyDir}, Flags{IgnoreDaemonSets: true}, ActionSkip, []string{}},
		"DaemonSet, finished":            {[]func(*corev1.Pod){daemon, phase(corev1.PodSucceeded)}, Flags{}, ActionEvict, []string{}},
		"DaemonSet is gone":              {[]func(*corev1.Pod){orphan}, Flags{IgnoreDaemonSets: true}, ActionRefuse, []string{"UnmanagedPod:Block a/p1"}},
		"DaemonSet is gone, forced":      {[]func(*corev1.Pod){orphan}, Flags{IgnoreDaemonSets: true, Force: true}, ActionEvict, []string{}},
		"mirror":                         {[]func(*corev1.Pod){mirror}, Flags{}, ActionSkip, []string{}},
		"terminating":                    {[]func(*corev1.Pod){bare, dying}, Flags{}, ActionSkip, []string{}},
		"a finalizer":                    {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Finalizers = []string{"x.io/f"} }}, Flags{}, ActionEvict, []string{"FinalizerHeld:Warn a/p1"}},
		"the Job controller's finalizer": {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Finalizers = []string{"batch.kubernetes.io/job-tracking"} }}, Flags{}, ActionEvict, []string{}},
		"safe-to-evict false":            {[]func(*corev1.Pod){annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")}, Flags{}, ActionEvict, []string{"DoNotEvict:Warn a/p1"}},
		"safe-to-evict true":             {[]func(*corev1.Pod){annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "true")}, Flags{}, ActionEvict, []string{}},
		"do-not-disrupt, respected":      {[]func(*corev1.Pod){annotated("karpenter.sh/do-not-disrupt", "true")}, Flags{RespectDoNotEvict: true}, ActionRefuse, []string{"DoNotEvict:Block a/p1"}},
		"do-not-disrupt, forced":         {[]func(*corev1.Pod){annotated("karpenter.sh/do-not-disrupt", "true")}, Flags{RespectDoNotEvict: true, ForceUnsafe: []string{"pod/a/p1"}}, ActionEvict, []string{"DoNotEvict:Block a/p1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1").pod("n1", "p1", tc.change...)
			w.daemonSets[Key{"a", "d"}] = true
			plan := w.plan(tc.flags, "n1")
			if got := plan.Pods[0].Action; got != tc.action {
				t.Errorf("action %s, want %s", got, tc.action)
			}
			if d := cmp.Diff(tc.want, codes(plan.Findings)); d != "" {
				t.Errorf("findings (-want +got):\n%s", d)
			}
			blocked := slices.ContainsFunc(plan.Findings, func(f Finding) bool { return f.Severity == Block && !f.Accepted })
			if (plan.Verdict == Unsafe) != blocked || blocked != (tc.action == ActionRefuse) {
				t.Errorf("verdict %s with findings %v", plan.Verdict, codes(plan.Findings))
			}
		})
	}
}

func budget(name string, status policyv1.PodDisruptionBudgetStatus, change ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	min := intstr.FromInt32(2)
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &min, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "p"}}},
		Status:     status,
	}
	for _, c := range change {
		c(b)
	}
	return b
}

// TestBudgets tells the budgets that wait from the ones that never let go.
func TestBudgets(t *testing.T) {
	type status = policyv1.PodDisruptionBudgetStatus
	unready := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	always := policyv1.AlwaysAllow
	failed := func(b *policyv1.PodDisruptionBudget) {
		b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: "no scale"}}
	}
	for name, tc := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		pod     []func(*corev1.Pod)
		flags   Flags
		code    int
		want    []string
	}{
		"none":                       {nil, nil, Flags{}, 201, []string{}},
		"allows":                     {[]*policyv1.PodDisruptionBudget{budget("b", status{DisruptionsAllowed: 1, ExpectedPods: 3, DesiredHealthy: 2, CurrentHealthy: 3})}, nil, Flags{}, 201, []string{}},
		"not now":                    {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 3, DesiredHealthy: 2, CurrentHealthy: 2})}, nil, Flags{}, 429, []string{"BudgetExhausted:Warn[n1] a/b"}},
		"never":                      {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 2, DesiredHealthy: 2, CurrentHealthy: 2})}, nil, Flags{}, 429, []string{"BudgetNever:Block[n1] a/b"}},
		"never, but waited for":      {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 2, DesiredHealthy: 2, CurrentHealthy: 2})}, nil, Flags{WaitBudget: []string{"a/b"}}, 429, []string{"BudgetHeld:Warn[n1] a/b"}},
		"never, its operator waits":  {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 2, DesiredHealthy: 2, CurrentHealthy: 2})}, []func(*corev1.Pod){owner("Broker", "example.com/v1", "x")}, Flags{}, 429, []string{"BudgetHeld:Warn[n1] a/b"}},
		"bypassed":                   {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 2, DesiredHealthy: 2})}, nil, Flags{DisableEviction: true}, 429, []string{}},
		"cannot be computed":         {[]*policyv1.PodDisruptionBudget{budget("b", status{}, failed)}, nil, Flags{}, 429, []string{"BudgetBroken:Block[n1] a/b"}},
		"negative":                   {[]*policyv1.PodDisruptionBudget{budget("b", status{DisruptionsAllowed: -1})}, nil, Flags{}, 403, []string{"BudgetBroken:Block[n1] a/b"}},
		"newer than its status":      {[]*policyv1.PodDisruptionBudget{budget("b", status{DisruptionsAllowed: 1}, func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 })}, nil, Flags{}, 429, []string{"BudgetExhausted:Warn[n1] a/b"}},
		"two":                        {[]*policyv1.PodDisruptionBudget{budget("b", status{DisruptionsAllowed: 1}), budget("c", status{DisruptionsAllowed: 1})}, nil, Flags{}, 500, []string{"BudgetMultiple:Block a/p1"}},
		"two on a pending pod":       {[]*policyv1.PodDisruptionBudget{budget("b", status{}), budget("c", status{})}, []func(*corev1.Pod){phase(corev1.PodPending)}, Flags{}, 201, []string{}},
		"unready, enough healthy":    {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 3, DesiredHealthy: 2, CurrentHealthy: 2})}, []func(*corev1.Pod){unready}, Flags{}, 201, []string{}},
		"unready, too few healthy":   {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 3, DesiredHealthy: 2, CurrentHealthy: 1})}, []func(*corev1.Pod){unready}, Flags{}, 429, []string{"BudgetExhausted:Warn[n1] a/b"}},
		"unready and the only one":   {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 1, DesiredHealthy: 1})}, []func(*corev1.Pod){unready}, Flags{}, 429, []string{"BudgetNever:Block[n1] a/b"}},
		"unready and always allowed": {[]*policyv1.PodDisruptionBudget{budget("b", status{ExpectedPods: 1, DesiredHealthy: 1}, func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = &always })}, []func(*corev1.Pod){unready}, Flags{}, 201, []string{}},
		"selects nothing":            {[]*policyv1.PodDisruptionBudget{budget("b", status{}, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil })}, nil, Flags{}, 201, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1").pod("n1", "p1", tc.pod...)
			w.budgets = tc.budgets
			if got := PredictEviction(w.pods[0], w.budgets).Code; got != tc.code {
				t.Errorf("answer %d, want %d", got, tc.code)
			}
			plan := w.plan(tc.flags, "n1")
			if d := cmp.Diff(tc.want, codes(plan.Findings)); d != "" {
				t.Errorf("findings (-want +got):\n%s", d)
			}
		})
	}
}

func TestAccept(t *testing.T) {
	nodePort := func() *world { return newWorld("n1", "n2").service("mq", nil, "n1", "n2") }
	broken := func() *world {
		return newWorld("n1", "n2").service("mq", all(announced([]string{"n1"}, "n2"), func(s *ServiceFacts) { s.Rotation.Broken = "x" }), "n1", "n2")
	}
	last := func() *world { return newWorld("n1", "n2").service("mq", announced([]string{"n1"}, "n2"), "n1") }
	for name, tc := range map[string]struct {
		world    *world
		flags    Flags
		verdict  Verdict
		accepted []string
	}{
		"by name":                      {nodePort(), Flags{AcceptUnproven: []string{"a/mq"}}, Withdraw, []string{"unproven service/a/mq"}},
		"by a glob":                    {nodePort(), Flags{AcceptUnproven: []string{"a/*"}}, Withdraw, []string{"unproven service/a/mq"}},
		"all":                          {nodePort(), Flags{AcceptUnproven: []string{"all"}}, Withdraw, []string{"unproven service/a/mq"}},
		"another name":                 {nodePort(), Flags{AcceptUnproven: []string{"a/other"}}, Unproven, []string{}},
		"force does not accept it":     {nodePort(), Flags{ForceUnsafe: []string{"all"}}, Unproven, []string{}},
		"all leaves out broken hooks":  {broken(), Flags{AcceptUnproven: []string{"all", "a/*"}}, Unproven, []string{}},
		"a broken hook by name":        {broken(), Flags{AcceptUnproven: []string{"a/mq"}}, Withdraw, []string{"unproven service/a/mq"}},
		"the last endpoint":            {last(), Flags{AcceptUnproven: []string{"all"}}, Unsafe, []string{}},
		"the last endpoint, forced":    {last(), Flags{ForceUnsafe: []string{"service/a/mq"}}, Withdraw, []string{"unsafe service/a/mq"}},
		"the last endpoint, all force": {last(), Flags{ForceUnsafe: []string{"all"}}, Withdraw, []string{"unsafe service/a/mq"}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := tc.world.plan(tc.flags, "n1")
			if plan.Verdict != tc.verdict {
				t.Errorf("verdict %s, want %s", plan.Verdict, tc.verdict)
			}
			if d := cmp.Diff(tc.accepted, plan.Accepted); d != "" {
				t.Errorf("accepted (-want +got):\n%s", d)
			}
		})
	}
}

func TestEntries(t *testing.T) {
	cluster := func(in []string, eligible ...string) func(*ServiceFacts) {
		return all(announced(in, eligible...), func(s *ServiceFacts) { s.External = false })
	}
	plan := newWorld("n1", "n2").service("c", cluster([]string{"n1"}, "n2"), "n2").plan(Flags{}, "n1")
	if len(plan.Withdraw) != 1 || plan.Withdraw[0].Left != 1 || plan.Verdict != Safe || len(plan.Services) != 0 {
		t.Errorf("plan %+v: want one entry with one node left", plan)
	}
	plan = newWorld("n1", "n2").service("c", cluster([]string{"n1"}), "n2").plan(Flags{}, "n1")
	if plan.Verdict != Unsafe || plan.Withdraw[0].Findings[0].Code != NoEligibleNode {
		t.Errorf("verdict %s: nobody is left to announce", plan.Verdict)
	}
	plan = newWorld("n1", "n2").service("c", cluster([]string{"n2"}, "n1"), "n1").plan(Flags{}, "n1")
	if len(plan.Withdraw) != 0 || plan.Verdict != Safe {
		t.Errorf("plan %+v: n1 is no entry", plan)
	}
	everywhere := all(cluster(nil), func(s *ServiceFacts) { s.Rotation.Rest = Seat{In: Yes, Eligible: true} })
	plan = newWorld("n1", "n2", "n3").service("c", everywhere, "n2").plan(Flags{}, "n1")
	if len(plan.Withdraw) != 1 || plan.Withdraw[0].Left != 2 {
		t.Errorf("withdraw %+v: want two nodes left", plan.Withdraw)
	}
}

func TestPodsWaitForTheirServices(t *testing.T) {
	w := newWorld("n1", "n2").pod("n1", "p1").pod("n1", "p2").pod("n1", "p3").
		service("s", announced([]string{"n1"}, "n2"), "n1:RS=p1", "n1:=p2", "n2").
		service("t", announced([]string{"n1"}, "n2"), "n1:RS=p1", "n2").
		service("safe", announced([]string{"n2"}, "n1"), "n1:RS=p3", "n2")
	got := map[string][]string{}
	for _, p := range w.plan(Flags{}, "n1").Pods {
		got[p.Name] = p.After
	}
	want := map[string][]string{"p1": {"a/s", "a/t"}, "p2": nil, "p3": nil}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("after (-want +got):\n%s", d)
	}
}

func TestNodes(t *testing.T) {
	w := newWorld("n1", "n2", "n3").
		node("n1", func(n *NodeFacts) { n.Unreachable, n.Ready = true, false }).
		node("n2", func(n *NodeFacts) { n.Leaving = LeavingScaleDown }).
		node("n3", func(n *NodeFacts) { n.Claim = &Claim{Run: "old", Phase: "proven"} })
	want := []string{"ForgottenWithdrawal:Warn[n3]", "NodeAlreadyLeaving:Warn[n2]", "NodeUnreachable:Warn[n1]"}
	if d := cmp.Diff(want, codes(w.plan(Flags{}, "n1", "n2").Findings)); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
}

func TestAudit(t *testing.T) {
	pinned := &Workload{
		Kind: "Deployment", Key: Key{"a", "checkout"}, Replicas: 3, Labels: map[string]string{"app": "p"},
		Spec: &corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "n1"}},
	}
	selects := func(s *ServiceFacts) { s.Selector = map[string]string{"app": "p"} }
	w := newWorld("cp", "n1", "n2", "n3").node("cp", func(n *NodeFacts) { n.ControlPlane = true }).
		service("s", selects, "n1", "n1", "n1").service("c", func(s *ServiceFacts) { s.External = false })
	w.workloads = []*Workload{pinned}
	report := Audit(w, AuditFilter{})
	if len(report.Services) != 1 || report.Skipped.ClusterPolicy != 1 {
		t.Fatalf("report %+v", report)
	}
	want := []string{"ExistingBlackhole:Warn[n2 n3]", "PlacementPinned:Warn[n2 n3]", "SpreadMissing:Warn"}
	if d := cmp.Diff(want, codes(report.Services[0].Findings)); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
	rows := []NodeRow{
		{Name: "n1", Before: StateServing, After: StateServing, InRotation: Unknown, Endpoints: 3},
		{Name: "n2", Before: StateEmpty, After: StateEmpty, InRotation: Unknown},
		{Name: "n3", Before: StateEmpty, After: StateEmpty, InRotation: Unknown},
	}
	if d := cmp.Diff(rows, report.Services[0].Nodes); d != "" {
		t.Errorf("rows (-want +got):\n%s", d)
	}

	pinned.Spec = &corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{TopologyKey: corev1.LabelHostname}}}
	w.service("s", selects, "n1", "n2", "n3")
	if got := Audit(w, AuditFilter{}).Services[0]; len(got.Findings) != 0 {
		t.Errorf("findings %v after the fix, want none", codes(got.Findings))
	}
	if got := Audit(w, AuditFilter{Name: "other"}).Services; len(got) != 0 {
		t.Errorf("the filter let %v through", got)
	}
}

// A seat in Shared counts like one in Seats, and Seats wins.
func TestSharedSeats(t *testing.T) {
	yes, no := Seat{In: Yes, Eligible: true}, Seat{In: No}
	for name, tc := range map[string]struct {
		seats, shared map[string]Seat
		rest          Seat
		left          int
	}{
		"own":                  {seats: map[string]Seat{"n1": yes, "n2": yes}, rest: no, left: 1},
		"shared":               {seats: map[string]Seat{"n1": yes}, shared: map[string]Seat{"n2": yes, "n3": yes}, rest: no, left: 2},
		"own wins":             {seats: map[string]Seat{"n1": yes, "n2": no}, shared: map[string]Seat{"n2": yes, "n3": yes}, rest: no, left: 1},
		"own lets it in":       {seats: map[string]Seat{"n1": yes, "n2": yes}, shared: map[string]Seat{"n1": no, "n2": no, "n3": no}, rest: no, left: 1},
		"the rest is eligible": {seats: map[string]Seat{"n1": yes}, shared: map[string]Seat{"n2": no}, rest: Seat{In: No, Eligible: true}, left: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2", "n3", "n4").service("s", func(s *ServiceFacts) {
				s.External, s.Type = false, corev1.ServiceTypeLoadBalancer
				s.Rotation = Rotation{Hook: "test", Removal: RemovalLabel, Provable: true, Seats: tc.seats, Shared: tc.shared, Rest: tc.rest}
			}, "n2")
			plan := w.plan(Flags{}, "n1")
			if len(plan.Withdraw) != 1 || plan.Withdraw[0].Left != tc.left {
				t.Errorf("entries %+v, want one with %d nodes left", plan.Withdraw, tc.left)
			}
		})
	}
}
