package cli

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// typedStory is the command line of the story.
func typedStory(flags ...string) typed { return typed{name: "safedrain"}.with(flags...) }

var storyHooks = map[string]lbhooks.Description{
	"metallb-l2": {Name: "metallb-l2", Witness: "status", Settle: 2 * time.Second},
}

// story is node-3 of 12: an ingress behind MetalLB, a broker on a bare node port, a ledger whose budget allows nothing.
func story(accepted bool) *guard.DrainPlan {
	p := &guard.DrainPlan{
		Nodes: []string{"node-3"}, Verdict: guard.Unsafe, Accepted: []string{},
		Services: []guard.ServicePlan{
			{
				Namespace: "ingress", Name: "edge", Policy: guard.PolicyExternal, Verdict: guard.Withdraw,
				Balancer: guard.Balancer{
					Hook: "metallb-l2", Removal: guard.RemovalLabel,
					Moves: []guard.Move{{Address: "203.0.113.10", From: "node-3", To: "node-7"}},
				},
				Endpoints: guard.Count{Before: 4, After: 3},
				Nodes:     []guard.NodeRow{{Name: "node-3", Before: guard.StateServing, After: guard.StateEmpty, InRotation: guard.Yes}},
				Findings: []guard.Finding{{
					Code: guard.LosesLocalEndpoint, Severity: guard.Info, Nodes: []string{"node-3"}, Message: "is to leave rotation first",
				}},
			},
			{
				Namespace: "mq", Name: "broker", Policy: guard.PolicyExternal, Verdict: guard.Unproven, NodePorts: []int32{30672},
				Balancer: guard.Balancer{Hook: "none", Removal: guard.RemovalNone}, Endpoints: guard.Count{Before: 2, After: 1},
				Nodes: []guard.NodeRow{{Name: "node-3", Before: guard.StateServing, After: guard.StateEmpty, InRotation: guard.Unknown}},
				Findings: []guard.Finding{{
					Code: guard.RotationUnproven, Severity: guard.SeverityUnproven, Nodes: []string{"node-3"}, Accepted: accepted,
					Message: "NodePort 30672, no balancer known, clients may use node-3",
					Advice:  "say who sends: annotation safedrain.dev/hook, or safedrain.dev/nodes=none",
					Accept:  "--accept-unproven=mq/broker",
				}},
			},
		},
		Withdraw: []guard.Entry{
			{Namespace: "web", Name: "a", Nodes: []string{"node-3"}, Left: 11},
			{Namespace: "web", Name: "b", Nodes: []string{"node-3"}, Left: 11},
			{Namespace: "web", Name: "c", Nodes: []string{"node-3"}, Left: 11},
		},
	}
	storyPods(p, accepted)
	if accepted {
		p.Verdict = guard.Withdraw
		return p
	}
	p.Findings = append(p.Findings, guard.Finding{
		Code: guard.BudgetNever, Severity: guard.Block, Nodes: []string{"node-3"}, Budget: "pay/ledger",
		Message: "minAvailable 2 of 2 healthy, holds ledger-1", Advice: "kubectl -n pay scale statefulset/ledger --replicas=3",
		Accept: "--wait-budget=pay/ledger",
	})
	return p
}

func storyPods(p *guard.DrainPlan, accepted bool) {
	pod := func(ns, name string, a guard.Action, reason string, after ...string) {
		p.Pods = append(p.Pods, guard.PodPlan{
			Namespace: ns, Name: name, Node: "node-3", Action: a, Reason: reason, After: after, Grace: 30 * time.Second,
		})
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		pod("pay", "api-"+name, guard.ActionEvict, "")
	}
	pod("ingress", "edge-5f7c-abc", guard.ActionEvict, "", "ingress/edge")
	pod("mq", "broker-0", guard.ActionEvict, "", "mq/broker")
	pod("pay", "ledger-1", guard.ActionEvict, "")
	for _, ds := range []string{"calico-node", "kube-proxy", "node-exporter", "speaker"} {
		if accepted {
			pod("kube-system", ds+"-x7k2p", guard.ActionSkip, "DaemonSet "+ds+": it goes with the node")
			continue
		}
		pod("kube-system", ds+"-x7k2p", guard.ActionRefuse, "needs --ignore-daemonsets")
		p.Findings = append(p.Findings, guard.Finding{
			Code: guard.DaemonSetPod, Severity: guard.Block, Pod: "kube-system/" + ds + "-x7k2p",
			Message: "managed by DaemonSet " + ds + ", needs --ignore-daemonsets", Accept: "--ignore-daemonsets",
		})
	}
}

func TestPlanText(t *testing.T) {
	base := planView{hooks: storyHooks, hookTimeout: 30 * time.Second}
	for name, change := range map[string]func(*planView){
		"plan_refused": func(v *planView) { v.plan, v.typed = story(false), typedStory() },
		"plan_accepted": func(v *planView) {
			v.plan, v.typed = story(true), typedStory("--ignore-daemonsets", "--accept-unproven=mq/broker")
		},
		"plan_alone": func(v *planView) {
			v.plan, v.typed, v.alone = story(false), typedStory("--ignore-daemonsets"), []string{"node-2", "node-3"}
			v.plan.Nodes = []string{"node-2", "node-3"}
		},
		"plan_many": func(v *planView) { v.plan, v.typed = manyUnproven(), typedStory("--ignore-daemonsets") },
	} {
		t.Run(name, func(t *testing.T) {
			v := base
			change(&v)
			golden(t, name, planText(&v))
		})
	}
	v := base
	v.plan, v.typed = story(false), typedStory()
	golden(t, "drain_refused", "error: "+refusalText(&v))
}

// manyUnproven is a first run where most is unproven.
func manyUnproven() *guard.DrainPlan {
	p := &guard.DrainPlan{Nodes: []string{"node-3"}, Verdict: guard.Unproven}
	for _, ns := range []string{"data", "mq", "shop"} {
		for i := range map[string]int{"data": 8, "mq": 1, "shop": 15}[ns] {
			name := string(rune('a' + i))
			p.Services = append(p.Services, guard.ServicePlan{
				Namespace: ns, Name: name, Verdict: guard.Unproven, Balancer: guard.Balancer{Hook: "none"}, Endpoints: guard.Count{Before: 3, After: 2},
				Nodes: []guard.NodeRow{{Name: "node-3", Before: guard.StateServing, After: guard.StateEmpty}},
				Findings: []guard.Finding{{
					Code: guard.RotationUnproven, Severity: guard.SeverityUnproven, Nodes: []string{"node-3"},
					Message: "no balancer known", Advice: "say who sends", Accept: "--accept-unproven=" + ns + "/" + name,
				}},
			})
		}
	}
	return p
}

func TestEachText(t *testing.T) {
	withdraw := func(node string, pods int) guard.DrainPlan {
		return guard.DrainPlan{Nodes: []string{node}, Verdict: guard.Withdraw, Pods: make([]guard.PodPlan, pods)}
	}
	refused := *story(false)
	plans := []guard.DrainPlan{withdraw("node-1", 4), withdraw("node-2", 9), refused, withdraw("node-4", 7)}
	golden(t, "each", eachText(plans, false))
	golden(t, "each_wide", eachText(plans, true))
}

func TestReportText(t *testing.T) {
	t0 := time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC)
	report := &guard.DrainReport{DrainPlan: *story(true), Steps: []guard.Step{
		{Name: "withdraw", Node: "node-3", Service: "ingress/edge", Started: t0, Ended: t0, Outcome: "done"},
		{Name: "prove", Node: "node-3", Service: "ingress/edge", Started: t0, Ended: t0.Add(30 * time.Second), Outcome: "timedOut"},
	}}
	state := drain.NodeState{
		Name: "node-3", Cordoned: true, Labelled: true, Claimed: true, OutOf: []string{"metallb-l2"}, PodsTotal: 10, PodsGone: 6,
		Covered: map[guard.Key]int{{Namespace: "mq", Name: "broker"}: 1, {Namespace: "ingress", Name: "edge"}: 3},
		Remaining: []guard.PodPlan{
			{Namespace: "ingress", Name: "edge-5f7c-abc"}, {Namespace: "pay", Name: "api-x", Waiting: true}, {Namespace: "pay", Name: "api-y", Waiting: true},
		},
		Blocked: []drain.Blocked{{By: "budget pay/ledger (0 of 1 allowed)", Pods: []string{"pay/ledger-1"}}},
	}
	for name, v := range map[string]reportView{
		"report_done":        {result: &drain.Result{Report: report, Outcome: drain.Done, Nodes: []drain.NodeState{state}}},
		"report_interrupted": {result: &drain.Result{Report: report, Outcome: drain.Interrupted, Nodes: []drain.NodeState{state}}, reason: "interrupted after 9s"},
		"report_hook":        {result: &drain.Result{Report: report, Outcome: drain.HookFailed, Nodes: []drain.NodeState{state}}, reason: "ingress/edge is not proven out of metallb-l2 after 30s"},
		"report_untouched":   {result: &drain.Result{Outcome: drain.Interrupted, Nodes: []drain.NodeState{{Name: "node-3"}}}, reason: "interrupted, nothing changed"},
	} {
		t.Run(name, func(t *testing.T) {
			v.nodes, v.typed = []string{"node-3"}, typedStory("--context=prod-1", "--ignore-daemonsets", "--accept-unproven=mq/broker")
			golden(t, name, reportText(&v))
		})
	}
}
