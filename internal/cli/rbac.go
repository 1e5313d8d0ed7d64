package cli

import (
	"bytes"
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
	roleAllOurs  = "safedrain-all-ours"
	roleGateOwn  = "safedrain-all-ours-gate"
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

// allOursPermissions are what uncordon --all-ours needs beyond a drain to find a gate and to clear what it left.
var allOursPermissions = []permission{
	{group: "coordination.k8s.io", resource: "leases", verbs: []string{"list"}},
	{group: "admissionregistration.k8s.io", resource: "validatingwebhookconfigurations", verbs: []string{"list"}},
	{group: "admissionregistration.k8s.io", resource: "mutatingwebhookconfigurations", verbs: []string{"list"}},
	{group: "", resource: "pods", verbs: []string{"patch"}},
	{group: "cluster.x-k8s.io", resource: "machines", verbs: []string{"list", "patch"}},
}

// gateOwnPermissions are what it needs in the gate's namespace, and nowhere else.
var gateOwnPermissions = []permission{
	{group: "coordination.k8s.io", resource: "leases", verbs: []string{"delete"}},
	{group: "", resource: "secrets", verbs: []string{"list", "delete"}},
}

// ownRole is the roles that one command or flag needs beyond a drain.
type ownRole struct {
	flag, usage string
	roles       []namedRole
}

type namedRole struct {
	name string
	rows []permission
}

var ownRoles = []ownRole{
	{"hold", "Only what --hold needs beyond a drain, a role of its own.", []namedRole{{roleHold, holdPermissions}}},
	{"surge", "Only what --surge needs beyond a drain, a role of its own.", []namedRole{{roleSurge, surgePermissions}}},
	{
		"all-ours", "Only what uncordon --all-ours needs beyond a drain to clear what a gate left: a role of its own, and one to bind in the gate's namespace.",
		[]namedRole{{roleAllOurs, allOursPermissions}, {roleGateOwn, gateOwnPermissions}},
	},
}

// rbacFlags are the flags of rbac.
type rbacFlags struct {
	readOnly bool
	own      map[string]*bool // by the flag of an ownRole
	hooks    []string
}

func (a *app) rbacCommand() *cobra.Command {
	flags := rbacFlags{own: map[string]*bool{}}
	cmd := &cobra.Command{
		Use:   "rbac",
		Short: "Print the ClusterRole that the commands need",
		Long: "Print the ClusterRole that a drain needs, or with --read-only what plan, audit and hooks need, with what each hook reads.\n" +
			"With --hook, only what these hooks need.",
		Example: "  " + a.name + " rbac | kubectl apply -f -\n  " + a.name + " rbac --hook=metallb-bgp | kubectl apply -f -",
		Args:    atMost(0),
		RunE: func(*cobra.Command, []string) error {
			roles, err := flags.roles(newHooks(nil, choice{}).Descriptions())
			if err != nil {
				return err
			}
			var docs [][]byte
			for _, role := range roles {
				doc, err := roleYAML(role)
				if err != nil {
					return err
				}
				docs = append(docs, doc)
			}
			_, err = a.streams.Out.Write(bytes.Join(docs, []byte("---\n")))
			return err
		},
	}
	cmd.Flags().BoolVar(&flags.readOnly, "read-only", false, "Only what plan, audit and hooks need.")
	for i := range ownRoles {
		flags.own[ownRoles[i].flag] = cmd.Flags().Bool(ownRoles[i].flag, false, ownRoles[i].usage)
	}
	cmd.Flags().StringSliceVar(&flags.hooks, "hook", nil, "Only what these hooks need.")
	return cmd
}

// roles makes the ClusterRoles that the flags ask for.
func (f *rbacFlags) roles(hooks []lbhooks.Description) ([]*rbacv1.ClusterRole, error) {
	var out []*rbacv1.ClusterRole
	asked := ""
	for _, own := range ownRoles {
		if set := f.own[own.flag]; set == nil || !*set {
			continue
		}
		if asked != "" || f.readOnly || len(f.hooks) > 0 {
			return nil, usagef("--%s is a role of its own: leave out the other flags", own.flag)
		}
		asked = own.flag
		for _, r := range own.roles {
			out = append(out, clusterRole(r.name, r.rows))
		}
	}
	if asked != "" {
		return out, nil
	}
	role, err := f.drainRole(hooks)
	return []*rbacv1.ClusterRole{role}, err
}

// drainRole is the ClusterRole of a drain, of what only reads, or of hooks.
func (f *rbacFlags) drainRole(hooks []lbhooks.Description) (*rbacv1.ClusterRole, error) {
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
