package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Names of the roles that rbac prints.
const (
	roleDrain    = "safedrain"
	roleReadOnly = "safedrain-read-only"
	roleHook     = "safedrain-hook-"
	roleHold     = "safedrain-hold"
	roleSurge    = "safedrain-surge"
)

// permission is one row of the table of what the commands ask of the API server.
type permission struct {
	group, resource string
	verbs           []string
	writes          bool // only drain and uncordon need it
}

// permissions is that table; what hooks need stands in their descriptions.
var permissions = []permission{
	{group: "", resource: "nodes", verbs: []string{"get", "list"}},
	{group: "", resource: "services", verbs: []string{"list"}},
	{group: "", resource: "pods", verbs: []string{"list"}},
	{group: "discovery.k8s.io", resource: "endpointslices", verbs: []string{"list"}},
	{group: "policy", resource: "poddisruptionbudgets", verbs: []string{"list"}},
	{group: "apps", resource: "daemonsets", verbs: []string{"list"}},
	{group: "apps", resource: "deployments", verbs: []string{"list"}},
	{group: "apps", resource: "statefulsets", verbs: []string{"list"}},
	{group: "apps", resource: "deployments", verbs: []string{"get"}}, // plan --scale, as the next three
	{group: "apps", resource: "statefulsets", verbs: []string{"get"}},
	{group: "apps", resource: "replicasets", verbs: []string{"get", "list"}},
	{group: "autoscaling", resource: "horizontalpodautoscalers", verbs: []string{"list"}},
	{group: "admissionregistration.k8s.io", resource: "validatingwebhookconfigurations", verbs: []string{"list"}}, // audit, where a gate is
	{group: "", resource: "namespaces", verbs: []string{"list"}},
	{group: "", resource: "persistentvolumes", verbs: []string{"list"}},
	{group: "", resource: "persistentvolumeclaims", verbs: []string{"list"}},
	{group: "storage.k8s.io", resource: "storageclasses", verbs: []string{"list"}},
	{group: "storage.k8s.io", resource: "csinodes", verbs: []string{"list"}},
	{group: "storage.k8s.io", resource: "csidrivers", verbs: []string{"list"}},
	{group: "storage.k8s.io", resource: "csistoragecapacities", verbs: []string{"list"}},
	{group: "storage.k8s.io", resource: "volumeattachments", verbs: []string{"list"}},
	{group: "", resource: "nodes", verbs: []string{"patch", "watch"}, writes: true},
	{group: "", resource: "pods", verbs: []string{"get", "watch", "delete"}, writes: true},
	{group: "", resource: "pods/eviction", verbs: []string{"create"}, writes: true},
}

// holdPermissions are what --hold needs beyond a drain.
var holdPermissions = []permission{
	{group: "discovery.k8s.io", resource: "endpointslices", verbs: []string{"create", "delete", "get", "update"}},
	{group: "", resource: "pods", verbs: []string{"patch"}},
	{group: "apps", resource: "replicasets", verbs: []string{"get"}},
	{group: "networking.k8s.io", resource: "networkpolicies", verbs: []string{"list"}},
}

// surgePermissions are what --surge needs beyond a drain.
var surgePermissions = []permission{
	{group: "apps", resource: "deployments", verbs: []string{"patch"}},
	{group: "autoscaling", resource: "horizontalpodautoscalers", verbs: []string{"get", "patch"}},
	{group: "keda.sh", resource: "scaledobjects", verbs: []string{"get", "list", "patch"}},
	{group: "", resource: "pods", verbs: []string{"patch"}},
	{group: "", resource: "resourcequotas", verbs: []string{"list"}},
}

// rbacFlags are the flags of rbac.
type rbacFlags struct {
	readOnly bool
	hold     bool
	surge    bool
	hooks    []string
}

func (a *app) rbacCommand() *cobra.Command {
	var flags rbacFlags
	cmd := &cobra.Command{
		Use:   "rbac",
		Short: "Print the ClusterRole that the commands need",
		Long: "Print the ClusterRole that a drain needs, or with --read-only what plan, audit and hooks need, with what each hook reads.\n" +
			"With --hook, only what these hooks need.",
		Example: "  " + a.name + " rbac | kubectl apply -f -\n  " + a.name + " rbac --hook=metallb-bgp | kubectl apply -f -",
		Args:    atMost(0),
		RunE: func(*cobra.Command, []string) error {
			role, err := flags.role(newHooks(nil, choice{}).Descriptions())
			if err != nil {
				return err
			}
			out, err := roleYAML(role)
			if err != nil {
				return err
			}
			_, err = a.streams.Out.Write(out)
			return err
		},
	}
	cmd.Flags().BoolVar(&flags.readOnly, "read-only", false, "Only what plan, audit and hooks need.")
	cmd.Flags().BoolVar(&flags.hold, "hold", false, "Only what --hold needs beyond a drain, a role of its own.")
	cmd.Flags().BoolVar(&flags.surge, "surge", false, "Only what --surge needs beyond a drain, a role of its own.")
	cmd.Flags().StringSliceVar(&flags.hooks, "hook", nil, "Only what these hooks need.")
	return cmd
}

// role makes the ClusterRole that the flags ask for.
func (f *rbacFlags) role(hooks []lbhooks.Description) (*rbacv1.ClusterRole, error) {
	if f.surge {
		if f.hold || f.readOnly || len(f.hooks) > 0 {
			return nil, usagef("--surge is a role of its own: leave out --hold, --read-only and --hook")
		}
		return clusterRole(roleSurge, surgePermissions), nil
	}
	if f.hold {
		if f.readOnly || len(f.hooks) > 0 {
			return nil, usagef("--hold is a role of its own: leave out --read-only and --hook")
		}
		return clusterRole(roleHold, holdPermissions), nil
	}
	name, rows := roleDrain, slices.Clone(permissions)
	if f.readOnly {
		name = roleReadOnly
		rows = slices.DeleteFunc(rows, func(p permission) bool { return p.writes })
	}
	if len(f.hooks) > 0 {
		name, rows = roleHook+strings.Join(sorted(f.hooks), "-"), nil
	}
	for _, wanted := range f.hooks {
		if !slices.ContainsFunc(hooks, func(d lbhooks.Description) bool { return d.Name == wanted }) {
			return nil, usagef("--hook=%s: no hook of that name", wanted)
		}
	}
	for _, d := range hooks {
		if len(f.hooks) > 0 && !slices.Contains(f.hooks, d.Name) {
			continue
		}
		for _, n := range d.Needs {
			rows = append(rows, permission{group: n.Group, resource: n.Resource, verbs: n.Verbs})
		}
	}
	return clusterRole(name, rows), nil
}

func clusterRole(name string, rows []permission) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      rules(rows),
	}
}

// rules merges rows: one rule for the resources of a group that need the same verbs.
func rules(rows []permission) []rbacv1.PolicyRule {
	type target struct{ group, resource string }
	verbs := map[target][]string{}
	for _, p := range rows {
		t := target{p.group, p.resource}
		verbs[t] = sorted(append(verbs[t], p.verbs...))
	}
	out := []rbacv1.PolicyRule{} // a hook may need nothing: "rules: []", never null
	targets := slices.SortedFunc(keys(verbs), func(a, b target) int {
		return cmp.Or(cmp.Compare(a.group, b.group), slices.Compare(verbs[a], verbs[b]), cmp.Compare(a.resource, b.resource))
	})
	for _, t := range targets {
		if n := len(out); n > 0 && out[n-1].APIGroups[0] == t.group && slices.Equal(out[n-1].Verbs, verbs[t]) {
			out[n-1].Resources = append(out[n-1].Resources, t.resource)
			continue
		}
		out = append(out, rbacv1.PolicyRule{APIGroups: []string{t.group}, Resources: []string{t.resource}, Verbs: verbs[t]})
	}
	return out
}

// roleYAML writes a role as kubectl apply takes it.
func roleYAML(role *rbacv1.ClusterRole) ([]byte, error) {
	doc := map[string]any{
		"apiVersion": role.APIVersion, "kind": role.Kind, "metadata": map[string]any{"name": role.Name}, "rules": role.Rules,
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("cannot write the ClusterRole %s: %w", role.Name, err)
	}
	return out, nil
}
