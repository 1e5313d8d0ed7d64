package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// apartByNode lets no two pods of a Deployment be on one node.
func apartByNode(d *appsv1.Deployment) {
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: d.Spec.Selector}},
	}}
}

// TestPlacementOfRuns: a drain and plan --each say as plan does that a replacement fits nowhere, and where it gets hot; and
// so it is: the replacement stays Pending.
func TestPlacementOfRuns(t *testing.T) {
	t.Parallel()
	env := cluster.Env(t)
	nodes := env.Nodes(2)
	env.Service("web")
	env.Deployment("web", 2, apartByNode)
	env.EndpointsReady("web", 2)
	said := func(command string, plans ...guard.DrainPlan) {
		t.Helper()
		for i := range plans {
			s := serviceOf(t, plans[i].Services, env.Namespace, "web")
			if s.Replacements == nil || findingOf(s, guard.ReplacementUnschedulable) == nil || findingOf(s, guard.HotSpot) == nil {
				t.Errorf("%s says nothing of replacements: %+v", command, s)
			}
		}
	}
	var each struct{ Items []guard.DrainPlan }
	stdout, stderr, _ := run(t, "plan", "--each", nodes[0], nodes[1], "-o", "json")
	must(env, json.Unmarshal([]byte(stdout), &each))
	if len(each.Items) != 2 {
		t.Fatalf("%d plans\n%s", len(each.Items), stderr)
	}
	said("plan --each", each.Items...)

	var report guard.DrainReport
	stdout, stderr, code := run(t, nodes[0], "--accept-unproven="+env.Namespace+"/*", "-o", "json")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	must(env, json.Unmarshal([]byte(stdout), &report))
	said("a drain", report.DrainPlan)
	if want := "Warning: " + env.Namespace + "/web: the replacement of "; !strings.Contains(stderr, want) {
		t.Errorf("stderr lacks %q:\n%s", want, stderr)
	}
	env.PodsReady("web", 1)
	env.Wait("a pod is Pending", func(ctx context.Context) (bool, string, error) {
		list, err := env.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		return err == nil && len(list.Items) == 1 && isUnschedulable(&list.Items[0]), "none", err
	})
}

// serviceOf finds a Service among some.
func serviceOf(t testing.TB, all []guard.ServicePlan, namespace, name string) *guard.ServicePlan {
	t.Helper()
	for i := range all {
		if all[i].Namespace == namespace && all[i].Name == name {
			return &all[i]
		}
	}
	t.Fatalf("no Service %s/%s among %d", namespace, name, len(all))
	return nil
}

// findingOf finds a finding of a Service; nil when there is none.
func findingOf(s *guard.ServicePlan, code guard.Code) *guard.Finding {
	for i := range s.Findings {
		if s.Findings[i].Code == code {
			return &s.Findings[i]
		}
	}
	return nil
}
