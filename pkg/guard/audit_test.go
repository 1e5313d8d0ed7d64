package guard

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAuditRollouts: three nodes that get traffic and a workload on them.
func TestAuditRollouts(t *testing.T) {
	labels := map[string]string{"app": "p"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	honor := corev1.NodeInclusionPolicyHonor
	spread := func(key string, change func(*corev1.TopologySpreadConstraint)) *corev1.PodSpec {
		c := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector}
		change(&c)
		return &corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{c}}
	}
	plain := func(*corev1.TopologySpreadConstraint) {}
	honors := func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = &honor }
	byRevision := func(c *corev1.TopologySpreadConstraint) {
		honors(c)
		c.MatchLabelKeys = []string{"pod-template-hash"}
	}
	apart := func(keys ...string) *corev1.PodSpec {
		return &corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: selector.DeepCopy(), MatchLabelKeys: keys}},
		}}}
	}
	ports := func() *corev1.PodSpec {
		s := spread(corev1.LabelHostname, honors)
		s.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}}}
		return s
	}
	one := []string{"n1=p-1", "n2=p-2", "n3=p-3"}
	two := append(append([]string{}, one...), "n1=p-4", "n2=p-5", "n3=p-6")
	const deadlock, empties, tainted = "RolloutDeadlock:Warn", "RolloutEmptiesNode:Warn[n1 n2 n3]", "SpreadCountsTainted:Warn[gpu]"
	for name, c := range map[string]struct {
		kind    string
		rollout Rollout
		spec    *corev1.PodSpec
		pods    []string
		want    []string
	}{
		"anti-affinity, no free node":      {kindDeployment, Rollout{rolloutRolling, 1, 0}, apart(), one, []string{deadlock, empties}},
		"anti-affinity, a free node":       {kindDeployment, Rollout{rolloutRolling, 1, 0}, apart(), one[:2], []string{"RolloutEmptiesNode:Warn[n1 n2]"}},
		"anti-affinity of each revision":   {kindDeployment, Rollout{rolloutRolling, 1, 0}, apart("pod-template-hash"), one, []string{}},
		"anti-affinity, a pod goes first":  {kindDeployment, Rollout{rolloutRolling, 0, 1}, apart(), one, []string{empties}},
		"host ports":                       {kindDeployment, Rollout{rolloutRolling, 1, 0}, ports(), one, []string{deadlock, empties}},
		"a spread that counts the tainted": {kindDeployment, Rollout{rolloutRolling, 1, 0}, spread(corev1.LabelHostname, plain), one, []string{deadlock, empties, tainted}},
		"a spread":                         {kindDeployment, Rollout{rolloutRolling, 1, 0}, spread(corev1.LabelHostname, honors), one, []string{empties}},
		"a spread of each revision":        {kindDeployment, Rollout{rolloutRolling, 1, 0}, spread(corev1.LabelHostname, byRevision), one, []string{}},
		"a spread, two at a time":          {kindDeployment, Rollout{rolloutRolling, 2, 0}, spread(corev1.LabelHostname, byRevision), one, []string{empties}},
		"two a node":                       {kindDeployment, Rollout{rolloutRolling, 0, 1}, spread(corev1.LabelHostname, honors), two, []string{}},
		"two a node, two at a time":        {kindDeployment, Rollout{rolloutRolling, 0, 2}, spread(corev1.LabelHostname, honors), two, []string{empties}},
		"Recreate":                         {kindDeployment, Rollout{rolloutRecreate, 0, 0}, spread(corev1.LabelHostname, honors), two, []string{empties}},
		"a DaemonSet":                      {kindDaemonSet, Rollout{rolloutRolling, 0, 1}, &corev1.PodSpec{}, one, []string{empties}},
		"a DaemonSet with surge":           {kindDaemonSet, Rollout{rolloutRolling, 1, 0}, &corev1.PodSpec{}, one, []string{}},
		"a DaemonSet on delete":            {kindDaemonSet, Rollout{"OnDelete", 0, 0}, &corev1.PodSpec{}, one, []string{}},
		"a StatefulSet":                    {kindStatefulSet, Rollout{rolloutRolling, 0, 1}, spread(corev1.LabelHostname, honors), one, []string{empties}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2", "n3", "gpu").node("gpu", func(n *NodeFacts) {
				n.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			})
			w.service("s", func(s *ServiceFacts) {
				s.Selector = labels
				s.Rotation.Seats = map[string]Seat{"gpu": {In: No}}
			}, c.pods...)
			w.workloads = []*Workload{{
				Kind: c.kind, Key: Key{"a", "p"}, Replicas: int32(len(c.pods)), Labels: labels, Spec: c.spec, Selector: selector, Rollout: c.rollout,
			}}
			got := []string{}
			for _, f := range codes(Audit(w, AuditFilter{}).Services[0].Findings) {
				if f != "ExistingBlackhole:Warn[n3]" {
					got = append(got, f)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("findings (-want +got):\n%s", d)
			}
		})
	}
}

// TestAuditNotes: nodes that a Service of internal policy Local leaves out, and Services that hide their clients.
func TestAuditNotes(t *testing.T) {
	w := newWorld("n1", "n2").
		service("inside", func(s *ServiceFacts) { s.External, s.Internal = false, true }, "n1=p-1").
		service("hidden", func(s *ServiceFacts) { s.External = false }, "n1=q-1")
	report := Audit(w, AuditFilter{})
	if d := cmp.Diff([]string{"InternalLosesLocal:Warn[n2]"}, codes(report.Services[0].Findings)); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"ClientAddressHidden:Info"}, codes(report.Findings)); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
}

// TestAuditOutlivesCheck: pods that serve on until the health check has taken their node out empty no node in rotation.
func TestAuditOutlivesCheck(t *testing.T) {
	labels := map[string]string{"app": "p"}
	for sleep, want := range map[int64]bool{5: true, 120: false} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		sleeps(sleep, 150)(pod)
		w := newWorld("n1", "n2").service("s", all(checked, func(s *ServiceFacts) { s.Selector = labels }), "n1=p-1", "n2=p-2")
		w.workloads = []*Workload{{
			Kind: kindStatefulSet, Key: Key{"a", "p"}, Replicas: 2, Labels: labels, Spec: &pod.Spec, Rollout: Rollout{Type: rolloutRolling, Unavailable: 1},
		}}
		found := slices.ContainsFunc(Audit(w, AuditFilter{}).Services[0].Findings, func(f Finding) bool { return f.Code == RolloutEmptiesNode })
		if found != want {
			t.Errorf("a preStop sleep of %ds: RolloutEmptiesNode %t, want %t", sleep, found, want)
		}
	}
}
