package e2e

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/test/controlplane"
)

// asUser writes a kubeconfig and returns safedrain as run with it.
func asUser(t testing.TB, config *rest.Config) program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := controlplane.WriteKubeconfig(config, path); err != nil {
		t.Fatal(err)
	}
	return program{path: binary, kubeconfig: path}
}

// drainRole is the role that `safedrain rbac` prints.
func drainRole(t testing.TB, flags ...string) *rbacv1.ClusterRole {
	t.Helper()
	stdout, stderr, code := run(t, append([]string{"rbac"}, flags...)...)
	if code != 0 {
		t.Fatalf("rbac: exit code %d\n%s", code, stderr)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict([]byte(stdout), role); err != nil {
		t.Fatal(err)
	}
	return role
}

// grant makes a user who may do exactly what a role says, under a name of its own.
func grant(e *controlplane.Env, role *rbacv1.ClusterRole) (user string, as program) {
	e.Helper()
	user = e.Namespace
	role = role.DeepCopy()
	role.Name = user
	_, err := e.Client.RbacV1().ClusterRoles().Create(e.Context(), role, metav1.CreateOptions{})
	must(e, err)
	_, err = e.Client.RbacV1().ClusterRoleBindings().Create(e.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	must(e, err)
	e.Cleanup(func() {
		ctx := context.Background() // the test's own has ended
		for _, err := range []error{
			e.Client.RbacV1().ClusterRoleBindings().Delete(ctx, user, metav1.DeleteOptions{}),
			e.Client.RbacV1().ClusterRoles().Delete(ctx, user, metav1.DeleteOptions{}),
		} {
			if err != nil {
				e.Error(err)
			}
		}
	})
	may(e, user, permissions(role)[0])
	config, err := e.Cluster.UserConfig(user)
	must(e, err)
	return user, asUser(e, config)
}

// may waits until the API server knows that a user has a permission: it learns of a role and of a binding a moment later.
func may(e *controlplane.Env, user string, p permission) {
	e.Helper()
	resource, subresource, _ := strings.Cut(p.resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Group: p.group, Resource: resource, Subresource: subresource, Verb: p.verb},
	}}
	e.Wait(user+" may "+p.String(), func(ctx context.Context) (bool, string, error) {
		answer, err := e.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed, "may not", err
	})
}

// permission is one verb on one resource of a role.
type permission struct{ group, resource, verb string }

func (p permission) String() string {
	if p.group == "" {
		return p.verb + " " + p.resource
	}
	return p.verb + " " + p.resource + "." + p.group
}

// without returns the role minus one permission.
func without(role *rbacv1.ClusterRole, p permission) *rbacv1.ClusterRole {
	out := role.DeepCopy()
	out.Rules = nil
	for _, q := range permissions(role) {
		if q != p {
			out.Rules = append(out.Rules, rbacv1.PolicyRule{APIGroups: []string{q.group}, Resources: []string{q.resource}, Verbs: []string{q.verb}})
		}
	}
	return out
}

func permissions(role *rbacv1.ClusterRole) []permission {
	var all []permission
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, permission{group, resource, verb})
				}
			}
		}
	}
	return all
}

// TestFullRole drains and uncordons with what `safedrain rbac` prints and nothing else.
func TestFullRole(t *testing.T) {
	s := newStep(t)
	s.obey()
	_, as := grant(s.Env, drainRole(t))
	stdout, stderr, code := as.run(t, s.command()...)
	if code != 0 || strings.Contains(stderr, "forbidden") || strings.Contains(stderr, "may not") {
		t.Errorf("drain: exit code %d\n%s%s", code, stdout, stderr)
	}
	s.drained()
	if stdout, stderr, code = as.run(t, "uncordon", s.victim); code != 0 {
		t.Errorf("uncordon: exit code %d\n%s%s", code, stdout, stderr)
	}
	s.standsAsBefore(s.victim)
}

// TestReadOnlyRole is enough for plan and audit, and a drain with it changes nothing and names what it lacks.
func TestReadOnlyRole(t *testing.T) {
	s := newStep(t)
	_, as := grant(s.Env, drainRole(t, "--read-only"))
	for _, command := range [][]string{{"plan", s.victim, "--force", "--ignore-daemonsets"}, {"audit"}, {"hooks"}} {
		if stdout, stderr, code := as.run(t, command...); code != 0 || strings.Contains(stderr, "forbidden") {
			t.Errorf("%s: exit code %d\n%s%s", command[0], code, stdout, stderr)
		}
	}
	stdout, stderr, code := as.run(t, s.command()...)
	if code != 1 || !strings.Contains(stderr, "patch") || !strings.Contains(stderr, "nodes") {
		t.Errorf("drain: exit code %d, want 1 and patch nodes\n%s%s", code, stdout, stderr)
	}
	s.untouched()
}

// untouched checks that the victim and its pods are as they were.
func (s *step) untouched() {
	s.Helper()
	s.standsAsBefore(s.victim)
	pods := podsOn(s.Env, s.victim)
	if len(pods) != 2 {
		s.Errorf("%d pods are left, want 2", len(pods))
	}
	for i := range pods {
		if pods[i].DeletionTimestamp != nil {
			s.Errorf("pod %s terminates", pods[i].Name)
		}
	}
}

// needed are the permissions without which no drain of the scene is possible; those about events and balancers that it has
// not are for better proofs.
var needed = []permission{
	{"", "nodes", "get"},
	{"", "nodes", "list"},
	{"", "nodes", "patch"},
	{"", "services", "list"},
	{"", "pods", "list"},
	{"", "pods/eviction", "create"},
	{"discovery.k8s.io", "endpointslices", "list"},
	{"policy", "poddisruptionbudgets", "list"},
}

// witnesses are the permissions without which nobody can tell which nodes the balancer of the scene sends to.
var witnesses = []permission{
	{"metallb.io", "ipaddresspools", "list"}, {"metallb.io", "l2advertisements", "list"}, {"metallb.io", "servicel2statuses", "list"},
}

// TestLackingOneVerb takes one permission of the role away at a time. What is needed is named with exit code 1, before or
// after which nothing stands changed; what proves is named with a refusal; without any other the drain ends well.
func TestLackingOneVerb(t *testing.T) {
	role := drainRole(t)
	for _, p := range permissions(role) {
		t.Run(strings.ReplaceAll(p.String(), "/", "-"), func(t *testing.T) {
			s := newStep(t)
			s.obey()
			_, as := grant(s.Env, without(role, p))
			stdout, stderr, code := as.run(t, s.command("--settle=0s", "--timeout=40s")...)
			switch {
			case slices.Contains(needed, p):
				if code != 1 || !strings.Contains(stderr, p.verb) || !strings.Contains(stderr, p.resource) {
					t.Errorf("exit code %d, want 1 and %q\n%s%s", code, p, stdout, stderr)
				}
				s.untouched()
			case slices.Contains(witnesses, p):
				if code != 3 || !strings.Contains(stderr, p.resource) {
					t.Errorf("exit code %d, want 3 and %q\n%s%s", code, p, stdout, stderr)
				}
				s.untouched()
			default:
				if code != 0 {
					t.Errorf("exit code %d, want 0\n%s%s", code, stdout, stderr)
				}
				s.drained()
			}
		})
	}
}

// TestPermissionsRevoked takes every permission away while a drain waits. It ends and says what stands on the node and what
// to type; whoever may goes on with the same command.
func TestPermissionsRevoked(t *testing.T) {
	s := steps["evicting and a budget holds"](t)
	user, as := grant(s.Env, drainRole(t))
	b := as.begin(t, s.command()...)
	b.says(s.Env, s.says)
	binding, err := s.Client.RbacV1().ClusterRoleBindings().Get(s.Context(), user, metav1.GetOptions{})
	must(s.Env, err)
	binding.Subjects[0].Name = user + "-somebody-else"
	_, err = s.Client.RbacV1().ClusterRoleBindings().Update(s.Context(), binding, metav1.UpdateOptions{})
	must(s.Env, err)
	said, code := b.end()
	if code != 1 && code != 4 {
		t.Errorf("exit code %d, want 1 or 4\n%s", code, said)
	}
	wantSaid(t, said, "cannot", "node/"+s.victim+" cordoned and labelled", "safedrain uncordon "+s.victim)
	s.free()
	wantRun(s.Env, 0, []string{"drained"}, s.command("--take-over")...)
	s.drained()
	s.undo()
}

// TestCredentials are those that the API server does not accept: exit code 1, and what to do.
func TestCredentials(t *testing.T) {
	t.Parallel()
	expired, err := cluster.ExpiredConfig("alice")
	if err != nil {
		t.Fatal(err)
	}
	wrong := cluster.Config()
	wrong.CertData, wrong.KeyData = nil, nil
	for name, test := range map[string]struct {
		as   program
		says []string
	}{
		"expired certificate": {asUser(t, expired), []string{"expired"}},
		"nobody":              {asUser(t, wrong), nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, args := range [][]string{{"node-1"}, {"plan", "node-1"}, {"-l", "a=b"}, {"uncordon", "node-1"}, {"audit"}} {
				stdout, stderr, code := test.as.run(t, args...)
				if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "error: ") {
					t.Errorf("%v: exit code %d, want 1 and an error\n%s%s", args, code, stdout, stderr)
				}
				wantSaid(t, stderr, test.says...)
			}
		})
	}
}

// TestNoCluster runs against a port where nobody listens, and without any kubeconfig.
func TestNoCluster(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := cluster.Config()
	config.Host = fmt.Sprintf("https://%s", l.Addr())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		as   program
		says string
	}{
		"refused":       {asUser(t, config), "cannot reach the cluster"},
		"no kubeconfig": {program{path: binary, kubeconfig: filepath.Join(t.TempDir(), "none")}, "kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, args := range [][]string{{"node-1"}, {"plan", "node-1"}, {"uncordon", "node-1"}, {"audit"}} {
				stdout, stderr, code := test.as.run(t, args...)
				if code != 1 || stdout != "" || !strings.Contains(stderr, test.says) {
					t.Errorf("%v: exit code %d, want 1 and %q\n%s%s", args, code, test.says, stdout, stderr)
				}
			}
		})
	}
}
