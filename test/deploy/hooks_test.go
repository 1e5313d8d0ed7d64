package deploy_test

import (
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/test/controlplane"
)

// hookRights: the gate may read whatever a hook says it needs, and follow it; and the role of the hooks names nothing that no
// hook needs.
func hookRights(env *controlplane.Env, objects []*unstructured.Unstructured) {
	type target struct{ group, resource string }
	needed := map[target]bool{}
	for _, d := range hookset.New(hookset.Deps{}).Descriptions() {
		for _, n := range d.Needs {
			needed[target{n.Group, n.Resource}] = true
			verbs := n.Verbs
			if slices.Contains(verbs, "list") && n.Resource != "events" {
				verbs = append(slices.Clone(verbs), "watch")
			}
			for _, verb := range verbs {
				if r := (right{verb: verb, group: n.Group, resource: n.Resource}); !allowed(env, r) {
					env.Errorf("hook %s: not allowed: %s", d.Name, r)
				}
			}
		}
	}
	role := as[rbacv1.ClusterRole](env, find(env, objects, "ClusterRole", "safedrain-gate-hooks"))
	named := map[target]bool{}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				named[target{group, resource}] = true
			}
		}
		for _, verb := range rule.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) {
				env.Errorf("the hooks may %s %v", verb, rule.Resources)
			}
		}
	}
	for t := range maps.Keys(named) {
		if !needed[t] {
			env.Errorf("no hook needs %s.%s", t.resource, t.group)
		}
	}
}
