package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// probeOf is a probe of a port that the tests name by its title.
func probeOf(node, port string, number int32, predicted, observed guard.Answer, notCounted string) guard.Probe {
	p := guard.Probe{Service: guard.Key{Namespace: "b", Name: "few"}, Node: node, PortProbe: guard.PortProbe{
		Port: port, Family: corev1.IPv4Protocol, Number: number, Predicted: predicted, Observed: observed, Times: 1, NotCounted: notCounted,
	}}
	if observed != predicted && observed != "" {
		p.Times = 2
	}
	return p
}

// probeReport is a Service on three of nodes nodes.
func probeReport(nodes int) *guard.CoverageReport {
	s := guard.ServicePlan{Namespace: "b", Name: "few", Balancer: guard.Balancer{Hook: "none"}, NodePorts: []int32{30090}}
	for i := 1; i <= nodes; i++ {
		row := guard.NodeRow{Name: fmt.Sprintf("node-%d", i), Before: guard.StateEmpty, InRotation: guard.Unknown}
		if i <= 3 {
			row.Before, row.Endpoints = guard.StateServing, 1
		}
		s.Nodes = append(s.Nodes, row)
	}
	return &guard.CoverageReport{Services: []guard.ServicePlan{s}}
}

func TestProbeText(t *testing.T) {
	const udp = "UDP: silence is a usual answer, so no probe can prove it"
	agrees := []guard.Probe{
		probeOf("node-1", "http/TCP", 30090, guard.AnswerOK, guard.AnswerOK, ""),
		probeOf("node-2", "http/TCP", 30090, guard.AnswerOK, guard.AnswerOK, ""),
		probeOf("node-3", "http/TCP", 30090, guard.AnswerOK, guard.AnswerOK, ""),
		probeOf("node-4", "http/TCP", 30090, guard.AnswerBlackhole, guard.AnswerBlackhole, ""),
		probeOf("node-1", guard.PortHealthCheck, 31000, guard.AnswerHealthy, guard.AnswerHealthy, ""),
		probeOf("node-4", guard.PortHealthCheck, 31000, guard.AnswerUnhealthy, guard.AnswerUnhealthy, ""),
		probeOf("node-1", "dns/UDP", 30053, guard.AnswerOK, "", udp),
	}
	disagrees := append(slices.Clone(agrees[3:]),
		probeOf("node-1", "http/TCP", 30090, guard.AnswerOK, guard.AnswerBlackhole, ""),
		probeOf("node-2", "http/TCP", 30090, guard.AnswerOK, guard.AnswerRefused, ""),
		probeOf("node-3", "http/TCP", 30090, guard.AnswerOK, "", "we run on this node"),
	)
	var many []guard.Probe
	for i := 1; i <= 60; i++ {
		p := probeOf(fmt.Sprintf("node-%d", i), fmt.Sprintf("p%d/TCP", i), int32(30000+i), guard.AnswerOK, guard.AnswerOK, "")
		if i == 7 {
			p.Observed, p.Times = guard.AnswerBlackhole, 2
		}
		many = append(many, p)
	}
	for name, test := range map[string]struct {
		nodes  int
		probes []guard.Probe
	}{
		"probe_agrees":    {4, agrees},
		"probe_disagrees": {4, disagrees},
		"probe_nothing": {4, []guard.Probe{
			probeOf("node-1", "http/TCP", 30090, guard.AnswerOK, guard.AnswerBlackhole, ""),
			probeOf("node-4", "http/TCP", 30090, guard.AnswerBlackhole, guard.AnswerBlackhole, ""),
			probeOf("node-1", guard.PortHealthCheck, 31000, guard.AnswerHealthy, guard.AnswerBlackhole, ""),
		}},
		"probe_many": {60, many},
	} {
		t.Run(name, func(t *testing.T) {
			report := probeReport(test.nodes)
			guard.JudgeProbes(report, test.probes, []string{"192.0.2.9"}, "outside the nodes")
			golden(t, name, auditText(&auditView{report: report, typed: typedStory()}))
		})
	}
	report := &guard.CoverageReport{}
	guard.JudgeProbes(report, nil, nil, "outside the nodes")
	if got := auditText(&auditView{report: report, typed: typedStory()}); !strings.Contains(got, "no Local Service has a node port") {
		t.Errorf("nothing to probe:\n%s", got)
	}
}
