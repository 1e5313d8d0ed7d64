package cli

import (
	"strings"
	"testing"

	"github.com/safedrain/safedrain/pkg/guard"
)

func TestParseScale(t *testing.T) {
	for text, want := range map[string]struct {
		asked scaleAsked
		err   string
	}{
		"deploy/web=2":                   {asked: scaleAsked{"Deployment", "web", 2}},
		"deployment/web=0":               {asked: scaleAsked{"Deployment", "web", 0}},
		"deployments.apps/web=2":         {asked: scaleAsked{"Deployment", "web", 2}},
		"deployments.v1.apps/web=2":      {asked: scaleAsked{"Deployment", "web", 2}},
		"Deployment.apps/web=2147483647": {asked: scaleAsked{"Deployment", "web", 1<<31 - 1}},
		"sts/db=1":                       {asked: scaleAsked{"StatefulSet", "db", 1}},
		"rs/web-5f7c=3":                  {asked: scaleAsked{"ReplicaSet", "web-5f7c", 3}},
		"deploy/web":                     {err: "write kind/name=replicas"},
		"web=2":                          {err: "write kind/name=replicas"},
		"/web=2":                         {err: "write kind/name=replicas"},
		"deploy/=2":                      {err: "write kind/name=replicas"},
		"deploy/shop/web=2":              {err: "the namespace goes into -n"},
		"":                               {err: "write kind/name=replicas"},
		"deploy/web=":                    {err: `"" is not a number`},
		"deploy/web=two":                 {err: `"two" is not a number`},
		"deploy/web=2.5":                 {err: `"2.5" is not a number`},
		"deploy/web=1=2":                 {err: `"1=2" is not a number`},
		"deploy/web=-1":                  {err: "there cannot be -1 replicas"},
		"deploy/web=2147483648":          {err: "there cannot be"},
		"ds/speaker=1":                   {err: "a DaemonSet has no scale"},
		"pods/web=1":                     {err: "a Pod has no scale"},
		"rollouts.argoproj.io/web=1":     {err: "nobody knows which pods"},
		"deployments.extensions/web=1":   {err: "nobody knows which pods"},
	} {
		got, err := parseScale(text)
		switch {
		case want.err == "" && (err != nil || got != want.asked):
			t.Errorf("%q: %+v, %v", text, got, err)
		case want.err != "" && (err == nil || !strings.Contains(err.Error(), want.err)):
			t.Errorf("%q: %v, want %q", text, err, want.err)
		}
	}
}

// scaleStory is a scale-down of an ingress from six pods to two on three nodes.
func scaleStory() *guard.ScalePlan {
	row := func(name string, may bool) guard.NodeRow {
		return guard.NodeRow{Name: name, Before: guard.StateServing, After: guard.StateEmpty, InRotation: guard.Yes, May: may}
	}
	p := &guard.ScalePlan{
		Verdict: guard.Unsafe,
		Workload: guard.ScaledWorkload{
			Kind: "Deployment", Namespace: "ingress", Name: "edge", Replicas: guard.Count{Before: 6, After: 2}, Pods: guard.Count{Before: 6, After: 2},
		},
		Floor: guard.Floor{Value: 3, Source: "3 nodes send for Service ingress/edge", Service: "ingress/edge", Nodes: []string{"node-1", "node-2", "node-3"}},
		Victims: []guard.Victim{
			{Name: "edge-a", Node: "node-1", Goes: guard.Will, Why: "not Ready"},
			{Name: "edge-b", Node: "node-3", Goes: guard.Will, Why: "3 pods on its node"},
			{Name: "edge-c", Goes: guard.May, Why: "2 of 3 that are alike to the controller"},
		},
		Keepers: []guard.ScaleKeeper{{Namespace: "ingress", Name: "edge-b", Node: "node-3", Services: []string{"edge"}}},
		Services: []guard.ServicePlan{{
			Namespace: "ingress", Name: "edge", Verdict: guard.Unsafe, Balancer: guard.Balancer{Hook: "metallb-bgp"}, Endpoints: guard.Count{Before: 6, After: 2},
			Nodes: []guard.NodeRow{row("node-1", true), row("node-3", false)},
			Findings: []guard.Finding{{
				Code: guard.ScaleEmptiesNode, Severity: guard.Block, Nodes: []string{"node-1", "node-3"},
				Message: "loses its last endpoint, or may, although another choice of 4 pods empties only 1", Advice: "keep edge-b",
			}},
		}},
		Findings: []guard.Finding{
			{Code: guard.BelowFloor, Severity: guard.Block, Message: "deployment ingress/edge needs 3: 3 nodes send for Service ingress/edge", Advice: "ask for 3 or more"},
			{Code: guard.AutoscalerBelowFloor, Severity: guard.Warn, Message: "HorizontalPodAutoscaler ingress/edge: minReplicas 2 is below the floor of 3", Advice: "raise minReplicas to 3"},
		},
	}
	return p
}

func TestScaleText(t *testing.T) {
	avoidable := scaleStory()
	avoidable.Findings, avoidable.Floor.Value = avoidable.Findings[1:], 2
	fine := scaleStory()
	fine.Verdict, fine.Findings, fine.Keepers, fine.Workload.Replicas.After, fine.Workload.Pods.After = guard.Safe, nil, nil, 4, 4
	fine.Services[0].Findings, fine.Services[0].Nodes, fine.Services[0].Verdict = nil, nil, guard.Safe
	warned := scaleStory()
	warned.Verdict, warned.Findings, warned.Keepers = guard.Safe, nil, nil
	warned.Services[0].Verdict, warned.Services[0].Findings[0].Severity = guard.Safe, guard.Warn
	up := scaleStory()
	up.Verdict, up.Findings, up.Victims, up.Keepers, up.Services, up.Workload.Replicas.After, up.Workload.Pods.After = guard.Safe, nil, nil, nil, nil, 9, 6
	for name, v := range map[string]scaleView{
		"scale_floor": {plan: scaleStory()}, "scale_avoidable": {plan: avoidable}, "scale_fine": {plan: fine},
		"scale_warned": {plan: warned, wide: true}, "scale_up": {plan: up},
	} {
		v.name = "safedrain"
		t.Run(name, func(t *testing.T) { golden(t, name, v.text()) })
	}
}
