package cli

import (
	"fmt"
	"testing"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

func TestUncordonText(t *testing.T) {
	back := drain.Restored{Node: "node-3", Services: []drain.RestoredService{{Service: "ingress/edge", Hook: "metallb-l2", Back: true}}}
	stays := drain.Restored{Node: "node-3", Services: []drain.RestoredService{
		{Service: "ingress/edge", Hook: "metallb-l2", Back: true},
		{Service: "shop/web", Hook: "http", Detail: "no Ready pod after 5m (web-k2v ImagePullBackOff)"},
	}}
	for name, v := range map[string]uncordonView{
		"uncordon_done": {restored: []drain.Restored{back}, result: &drain.Result{Took: 13 * time.Second}},
		"uncordon_stays": {
			restored: []drain.Restored{stays}, result: &drain.Result{Outcome: drain.Unfinished},
			reason: `node "node-3" is schedulable, but stays out: shop/web out of http`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v.nodes, v.typed = []string{"node-3"}, typedStory("--context=prod-1")
			golden(t, name, uncordonResult(&v)+uncordonText(&v))
		})
	}
}

// TestAuditText has one Service on three of sixty nodes behind a bare node port, and one that is fine.
func TestAuditText(t *testing.T) {
	rows := func(serving int) []guard.NodeRow {
		var out []guard.NodeRow
		for i := 1; i <= 60; i++ {
			row := guard.NodeRow{Name: fmt.Sprintf("node-%d", i), Before: guard.StateEmpty, InRotation: guard.Unknown}
			if i <= serving {
				row.Before, row.Endpoints = guard.StateServing, 1
			}
			out = append(out, row)
		}
		return out
	}
	var empty []string
	for i := 4; i <= 60; i++ {
		empty = append(empty, fmt.Sprintf("node-%d", i))
	}
	report := &guard.CoverageReport{
		Services: []guard.ServicePlan{
			{Namespace: "a", Name: "fine", Balancer: guard.Balancer{Hook: "metallb-l2"}, Nodes: rows(60)},
			{
				Namespace: "b", Name: "few", Balancer: guard.Balancer{Hook: "none"}, Nodes: rows(3), NodePorts: []int32{30090},
				Findings: []guard.Finding{{
					Code: guard.ExistingBlackhole, Severity: guard.Warn, Nodes: empty, Message: "already without a local endpoint",
					Advice: "give each node that gets traffic an endpoint",
				}},
			},
		},
		Findings: []guard.Finding{{
			Code: guard.ForgottenWithdrawal, Severity: guard.Warn, Nodes: []string{"node-9"}, Message: "is still marked as withdrawn",
			Advice: "safedrain uncordon node-9",
		}},
		Skipped: guard.Skipped{ClusterPolicy: 12, Headless: 2},
	}
	golden(t, "audit_many", auditText(&auditView{report: report, typed: typedStory()}))
}

func TestHooksText(t *testing.T) {
	v := &hooksView{typed: typedStory(), rows: []hookRow{
		{Namespace: "ingress", Name: "edge", Hook: "metallb-l2", Local: true, InRotation: []string{"node-3"}, Rotation: guard.Yes, Provable: true, Witness: "ServiceL2Status"},
		{
			Namespace: "ingress", Name: "tcp", Hook: "metallb-bgp", Local: true, Rotation: guard.Yes, Provable: true, Witness: "ServiceBGPStatus",
			InRotation: []string{"a", "b", "c", "d"}, Missing: []missing{{What: "not allowed to list frrnodestates.frrk8s.metallb.io", Why: "the proof is weaker", Forbidden: true}},
		},
		{Namespace: "mq", Name: "broker", Hook: "none", Local: true, Rotation: guard.Unknown, NodePorts: []int32{30672}, Missing: []missing{{What: "a hook, or safedrain.dev/nodes"}}},
		{
			Namespace: "shop", Name: "web", Hook: "cloud-provider", Local: true, Removal: guard.RemovalLabel, Rotation: guard.Yes, InRotation: []string{"node-1", "node-2", "node-3"},
			Missing: []missing{{What: "proof of a removal", Why: "safedrain.dev/settle on the Service accepts a time in its place"}},
		},
		{
			Namespace: "shop", Name: "api", Hook: "aws", Local: true, Removal: guard.RemovalLabel, Rotation: guard.Yes, InRotation: []string{"node-1"}, Broken: "x",
			Missing: []missing{{What: "not allowed elasticloadbalancing:DescribeTargetHealth on *", Why: "safedrain hooks aws --iam prints the least policy"}},
		},
		{
			Namespace: "two", Name: "lb", Hook: "calico", Conflict: []string{"calico", "metallb-l2"}, Local: true, Rotation: guard.Unknown,
			Reason:  "calico: 192.0.2.10 is in serviceLoadBalancerIPs 192.0.2.0/24; metallb-l2: ServiceL2Status names the Service",
			Missing: []missing{{What: "HookConflict: safedrain.dev/hook chooses"}},
		},
		{Namespace: "vip", Name: "lb", Hook: "kube-vip", Local: true, Removal: guard.RemovalNone, Rotation: guard.Yes, InRotation: []string{"node-1"}, OthersUnknown: true, Missing: []missing{{What: "proof of a removal", Why: "no DaemonSet of kube-vip is seen"}}},
		{Namespace: "pods", Name: "lb", Hook: "aws", Local: true, Removal: guard.RemovalNone, Rotation: guard.No, PodTargets: true},
		{Namespace: "old", Name: "port", Hook: "none", Local: true, Nobody: true},
	}}
	golden(t, "hooks", hooksText(v)+"---\n"+fixText(v))
	v.rows[1].Seats = []hookSeat{
		{"node-1", guard.No, true, "no endpoint"}, {"node-2", guard.No, true, "no endpoint"}, {"node-3", guard.Yes, true, "ServiceBGPStatus names it"}, {"node-4", guard.No, false, "excluded"},
	}
	golden(t, "hooks_detail", hookDetail(&hooksView{typed: v.typed, rows: v.rows[1:2]}))
	golden(t, "hooks_node", hooksText(&hooksView{typed: v.typed, rows: v.rows[1:2], node: "node-1", wide: true}))
}
