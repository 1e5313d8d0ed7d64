package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNode: nodename, nodeunschedulable, tainttoleration, nodeaffinity and nodedeclaredfeatures.
func TestNode(t *testing.T) {
	required := func(r ...corev1.NodeSelectorRequirement) podOption {
		return func(p *corev1.Pod) {
			affinities(p).NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: r}},
			}}
		}
	}
	run(t, map[string]ask{
		"a requested node": {
			nodes: []*corev1.Node{aNode("n1"), aNode("n2")}, pod: aPod("a", on("n2")),
			want: map[string]string{"n1": "nodeName n2", "n2": ""},
		},
		"a cordoned node": {
			nodes: []*corev1.Node{aNode("n1", cordon), aNode("n2")}, pod: aPod("a"), want: map[string]string{"n1": "cordoned", "n2": ""},
		},
		"a cordoned node and a pod that tolerates it": {
			nodes: []*corev1.Node{aNode("n1", cordon, tainted(corev1.TaintNodeUnschedulable, "", corev1.TaintEffectNoSchedule))},
			pod:   aPod("a", tolerates(corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists})),
			want:  map[string]string{"n1": ""},
		},
		"taints by effect": {
			why: "PreferNoSchedule keeps nothing out",
			nodes: []*corev1.Node{
				aNode("n1", tainted("x", "y", corev1.TaintEffectNoSchedule)), aNode("n2", tainted("x", "", corev1.TaintEffectNoExecute)),
				aNode("n3", tainted("x", "y", corev1.TaintEffectPreferNoSchedule)),
			},
			pod: aPod("a"), want: map[string]string{"n1": "taint x=y", "n2": "taint x", "n3": ""},
		},
		"tolerations by value and effect": {
			nodes: []*corev1.Node{aNode("n1", tainted("x", "y", corev1.TaintEffectNoSchedule)), aNode("n2", tainted("x", "z", corev1.TaintEffectNoSchedule))},
			pod:   aPod("a", tolerates(corev1.Toleration{Key: "x", Value: "y", Effect: corev1.TaintEffectNoSchedule})),
			want:  map[string]string{"n1": "", "n2": "taint x=z"},
		},
		"comparing tolerations are off by default": {
			nodes: []*corev1.Node{aNode("n1", tainted("x", "5", corev1.TaintEffectNoSchedule))},
			pod:   aPod("a", tolerates(corev1.Toleration{Key: "x", Operator: corev1.TolerationOpGt, Value: "1"})),
			want:  map[string]string{"n1": "taint x=5"},
		},
		"a node selector": {
			nodes: []*corev1.Node{aNode("n1", inZone("a")), aNode("n2")}, pod: aPod("a", selects(corev1.LabelTopologyZone, "a")),
			want: map[string]string{"n1": "", "n2": "not in its node selector"},
		},
		"node affinity": {
			nodes: []*corev1.Node{aNode("n1", labelled("cores", "16")), aNode("n2", labelled("cores", "4"))},
			pod:   aPod("a", required(corev1.NodeSelectorRequirement{Key: "cores", Operator: corev1.NodeSelectorOpGt, Values: []string{"8"}})),
			want:  map[string]string{"n1": "", "n2": "not in its node affinity"},
		},
		"a feature that the kubelet declares": {
			nodes: []*corev1.Node{aNode("n1", func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"} }), aNode("n2")},
			pod: aPod("a", func(p *corev1.Pod) {
				p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
			}),
			want: map[string]string{"n1": "", "n2": "kubelet lacks a feature"},
		},
	})
}

// TestHostPorts: nodeports/node_ports.go.
func TestHostPorts(t *testing.T) {
	n1 := []*corev1.Node{aNode("n1")}
	taken := map[string]string{"n1": "host port taken"}
	free := map[string]string{"n1": ""}
	run(t, map[string]ask{
		"the same port":         {nodes: n1, there: []*corev1.Pod{aPod("a", on("n1"), hostPort("", 80, ""))}, pod: aPod("b", hostPort("", 80, "TCP")), want: taken},
		"another protocol":      {nodes: n1, there: []*corev1.Pod{aPod("a", on("n1"), hostPort("", 80, "UDP"))}, pod: aPod("b", hostPort("", 80, "TCP")), want: free},
		"another address":       {nodes: n1, there: []*corev1.Pod{aPod("a", on("n1"), hostPort("10.0.0.1", 80, ""))}, pod: aPod("b", hostPort("10.0.0.2", 80, "")), want: free},
		"every address, wanted": {nodes: n1, there: []*corev1.Pod{aPod("a", on("n1"), hostPort("10.0.0.1", 80, ""))}, pod: aPod("b", hostPort("0.0.0.0", 80, "")), want: taken},
		"every address, taken":  {nodes: n1, there: []*corev1.Pod{aPod("a", on("n1"), hostPort("", 80, ""))}, pod: aPod("b", hostPort("10.0.0.1", 80, "")), want: taken},
		"a sidecar's port": {
			nodes: n1, there: []*corev1.Pod{aPod("a", on("n1"), func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{RestartPolicy: &always, Ports: []corev1.ContainerPort{{HostPort: 80}}}}
			})}, pod: aPod("b", hostPort("", 80, "")), want: taken,
		},
		"an init container's port is free again": {
			nodes: n1, there: []*corev1.Pod{aPod("a", on("n1"), func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}}}
			})}, pod: aPod("b", hostPort("", 80, "")), want: free,
		},
	})
}

// TestUnknown: pods that these rules say nothing of.
func TestUnknown(t *testing.T) {
	with := func(change func(*corev1.Pod)) *corev1.Pod { return aPod("a", change) }
	for name, p := range map[string]*corev1.Pod{
		"another scheduler": with(func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }),
		"resource claims":   with(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }),
		"a gate":            with(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x/y"}} }),
		"a group":           with(func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }),
		"volumes not read":  with(claims("data")),
	} {
		t.Run(name, func(t *testing.T) {
			a := New(&Cluster{Nodes: []Node{{Object: aNode("n1"), Whole: true}}}).Candidates(p)
			if a.Unknown == "" || !a.Fits() || len(a.Nodes)+len(a.Refused) > 0 {
				t.Errorf("answer %+v", a)
			}
		})
	}
}
