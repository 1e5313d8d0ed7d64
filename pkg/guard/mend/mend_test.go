package mend_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/mend"
)

// TestOf: what each hazard of a workload is mended by, or why it is not.
func TestOf(t *testing.T) {
	ports := []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}}}
	apart := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}}}}
	surge, unlock := rollingText("1", "0"), rollingText("0", "1")
	byRevision := "template: {spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [" +
		"{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [pod-template-hash]}]}}}}"
	for name, c := range map[string]struct {
		workload guard.Workload
		codes    []guard.Code
		pins     []string
		body     string // of spec; "" for no patch
		first    string
		without  []guard.Code
	}{
		"anti-affinity and no free node: two steps": {
			workload: guard.Workload{Kind: "Deployment", Spec: &corev1.PodSpec{Affinity: apart}},
			codes:    []guard.Code{guard.RolloutDeadlock, guard.RolloutEmptiesNode},
			body:     "{strategy: " + surge + ", " + byRevision + "}", first: "{strategy: " + unlock + ", " + byRevision + "}",
		},
		"anti-affinity and a free node: one": {
			workload: guard.Workload{Kind: "Deployment", Spec: &corev1.PodSpec{Affinity: apart}},
			codes:    []guard.Code{guard.RolloutEmptiesNode}, body: "{strategy: " + surge + ", " + byRevision + "}",
		},
		"host ports: the rollout ends, and empties nodes": {
			workload: guard.Workload{Kind: "Deployment", Spec: &corev1.PodSpec{Containers: ports}},
			codes:    []guard.Code{guard.RolloutDeadlock, guard.RolloutEmptiesNode},
			body:     "{strategy: " + unlock + "}", without: []guard.Code{guard.RolloutEmptiesNode},
		},
		"a DaemonSet": {
			workload: guard.Workload{Kind: "DaemonSet", Spec: &corev1.PodSpec{}},
			codes:    []guard.Code{guard.RolloutEmptiesNode}, body: "{updateStrategy: " + surge + "}",
		},
		"a StatefulSet": {
			workload: guard.Workload{Kind: "StatefulSet", Spec: &corev1.PodSpec{}},
			codes:    []guard.Code{guard.RolloutEmptiesNode}, without: []guard.Code{guard.RolloutEmptiesNode},
		},
		"a pin that may say what a node can do": {
			workload: guard.Workload{Kind: "Deployment", Spec: &corev1.PodSpec{NodeSelector: map[string]string{"gpu": "yes"}}},
			codes:    []guard.Code{guard.PlacementPinned}, pins: []string{"gpu"}, without: []guard.Code{guard.PlacementPinned},
		},
		"a pin of a DaemonSet to a zone": {
			workload: guard.Workload{Kind: "DaemonSet", Spec: &corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelTopologyZone: "a"}}},
			codes:    []guard.Code{guard.PlacementPinned}, pins: []string{corev1.LabelTopologyZone},
			body: "{template: {spec: {nodeSelector: {topology.kubernetes.io/zone: null}}}}",
		},
		"a spread that counts tainted nodes": {
			workload: guard.Workload{Kind: "StatefulSet", Spec: &corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{MaxSkew: 2, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule},
			}}},
			codes: []guard.Code{guard.SpreadCountsTainted},
			body: "{template: {spec: {topologySpreadConstraints: [{$patch: replace}, " +
				"{maxSkew: 2, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor}]}}}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.workload.Key, c.workload.Rollout.Type = guard.Key{Namespace: "shop", Name: "web"}, "RollingUpdate"
			var hazards []guard.Hazard
			for _, code := range c.codes {
				hazards = append(hazards, guard.Hazard{Code: code, Service: c.workload.Key, Workload: &c.workload, Pins: c.pins})
			}
			fixes := mend.Of(hazards)
			var body, first map[string]any
			if len(fixes.Patches) > 0 {
				body, first = fixes.Patches[0].Body, fixes.Patches[0].First
			}
			for _, d := range []string{diff(t, "body", c.body, body), diff(t, "first", c.first, first)} {
				if d != "" {
					t.Error(d)
				}
			}
			var without []guard.Code
			for _, w := range fixes.Without {
				without = append(without, w.Codes...)
			}
			if d := cmp.Diff(c.without, without); d != "" {
				t.Errorf("without a patch: %s", d)
			}
		})
	}
}

func rollingText(surge, unavailable string) string {
	return "{type: RollingUpdate, rollingUpdate: {maxSurge: " + surge + ", maxUnavailable: " + unavailable + "}}"
}

// diff compares a patch with the YAML of its spec.
func diff(t *testing.T, what, want string, got map[string]any) string {
	t.Helper()
	read := func(text string) map[string]any {
		var out map[string]any
		if err := yaml.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if want != "" {
		want = "{spec: " + want + "}"
	}
	text, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(read(want), read(string(text))); d != "" {
		return what + " (-want +got):\n" + d
	}
	return ""
}
