package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// spreads adds a constraint over pods of the pod's own app.
func spreads(skew int32, key string, when corev1.UnsatisfiableConstraintAction, more ...func(*corev1.TopologySpreadConstraint)) podOption {
	return func(p *corev1.Pod) {
		c := corev1.TopologySpreadConstraint{MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: when, LabelSelector: ofApp(p.Labels["app"])}
		for _, m := range more {
			m(&c)
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}

// TestSpread: podtopologyspread/filtering.go and common.go.
func TestSpread(t *testing.T) {
	honor, ignore := corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore
	taintsPolicy := func(p corev1.NodeInclusionPolicy) func(*corev1.TopologySpreadConstraint) {
		return func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = &p }
	}
	affinityPolicy := func(p corev1.NodeInclusionPolicy) func(*corev1.TopologySpreadConstraint) {
		return func(c *corev1.TopologySpreadConstraint) { c.NodeAffinityPolicy = &p }
	}
	minDomains := func(n int32) func(*corev1.TopologySpreadConstraint) {
		return func(c *corev1.TopologySpreadConstraint) { c.MinDomains = &n }
	}
	byHash := func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"hash"} }
	hash := func(v string) podOption { return func(p *corev1.Pod) { p.Labels["hash"] = v } }
	must := corev1.DoNotSchedule
	three := []*corev1.Node{aNode("n1", inZone("a")), aNode("n2", inZone("a")), aNode("n3", inZone("b"))}
	gone := []*corev1.Node{aNode("n1"), aNode("n2"), aNode("n3", cordon, tainted(corev1.TaintNodeUnschedulable, "", corev1.TaintEffectNoSchedule))}
	over := "spread over " + host
	run(t, map[string]ask{
		"as even as maxSkew allows": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"))}, pod: aPod("web-2", spreads(1, host, must)),
			want: map[string]string{"n1": over, "n2": "", "n3": ""},
		},
		"by zone": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1")), aPod("web-2", on("n2"))}, pod: aPod("web-3", spreads(1, zone, must)),
			want: map[string]string{"n1": "spread over " + zone, "n2": "spread over " + zone, "n3": ""},
		},
		"a larger skew": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"))}, pod: aPod("web-2", spreads(2, host, must)), want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
		"soft constraints keep nothing out": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"))}, pod: aPod("web-2", spreads(1, host, corev1.ScheduleAnyway)),
			want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
		"a cordoned node counts as an empty domain": {
			why: "nodeTaintsPolicy is Ignore by default, so the drained node wants the next pod and does not take it", nodes: gone,
			there: []*corev1.Pod{aPod("web-1", on("n1")), aPod("web-2", on("n2"))}, pod: aPod("web-3", spreads(1, host, must)),
			want: map[string]string{"n1": over, "n2": over, "n3": "cordoned"},
		},
		"nodeTaintsPolicy Honor leaves it out": {
			nodes: gone, there: []*corev1.Pod{aPod("web-1", on("n1")), aPod("web-2", on("n2"))}, pod: aPod("web-3", spreads(1, host, must, taintsPolicy(honor))),
			want: map[string]string{"n1": "", "n2": "", "n3": "cordoned"},
		},
		"nodes outside the node selector do not count": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1")), aPod("web-2", on("n2"))},
			pod:  aPod("web-3", selects(zone, "a"), spreads(1, host, must)),
			want: map[string]string{"n1": "", "n2": "", "n3": "not in its node selector"},
		},
		"nodeAffinityPolicy Ignore counts them": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1")), aPod("web-2", on("n2"))},
			pod:  aPod("web-3", selects(zone, "a"), spreads(1, host, must, affinityPolicy(ignore))),
			want: map[string]string{"n1": over, "n2": over, "n3": "not in its node selector"},
		},
		"minDomains makes the least 0": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1")), aPod("web-2", on("n3"))}, pod: aPod("web-3", spreads(1, zone, must, minDomains(3))),
			want: map[string]string{"n1": "spread over " + zone, "n2": "spread over " + zone, "n3": "spread over " + zone},
		},
		"matchLabelKeys counts pods of one revision": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"), hash("old"))}, pod: aPod("web-2", hash("new"), spreads(1, host, must, byHash)),
			want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
		"pods that are ending do not count": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"), ending)}, pod: aPod("web-2", spreads(1, host, must)),
			want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
		"other namespaces do not count": {
			nodes: three, there: []*corev1.Pod{aPod("other/web-1", on("n1"))}, pod: aPod("web-2", spreads(1, host, must)),
			want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
		"a node without the label": {
			nodes: []*corev1.Node{aNode("n1", inZone("a")), aNode("n2")}, pod: aPod("web", spreads(1, zone, must)),
			want: map[string]string{"n1": "", "n2": "without the label " + zone + " of its spread"},
		},
		"a pod that its own constraint does not count": {
			nodes: three, there: []*corev1.Pod{aPod("db-1", on("n1"))},
			pod:  aPod("web", spreads(1, host, must, func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = ofApp("db") })),
			want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
	})
}
