package hooks

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/test/apiproxy"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/customkinds"
)

// reader is the user that a hook reads as: it may do what the hook says that it needs, and nothing else.
type reader struct {
	*testing.T

	name       string
	needs      []lbhooks.Need
	remove     []customkinds.Kind // what NotServed takes away
	proxy      *apiproxy.Proxy
	kubernetes kubernetes.Interface
	dynamic    dynamic.Interface
}

func newReader(t *testing.T, env *controlplane.Env, needs []lbhooks.Need, remove ...customkinds.Kind) *reader {
	t.Helper()
	r := &reader{T: t, name: "reader-" + env.Namespace, needs: needs, remove: remove}
	config, err := cluster.UserConfig(r.name)
	r.must(err)
	r.proxy, err = apiproxy.New(config)
	r.must(err)
	t.Cleanup(r.proxy.Close)
	r.kubernetes, err = kubernetes.NewForConfig(r.proxy.Config())
	r.must(err)
	r.dynamic, err = dynamic.NewForConfig(r.proxy.Config())
	r.must(err)
	roles := cluster.Client().RbacV1().ClusterRoles()
	_, err = roles.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: r.name}, Rules: rules(needs)}, metav1.CreateOptions{})
	r.must(err)
	t.Cleanup(func() {
		ctx := context.Background() // the test's own has ended
		if err := errors.Join(r.revoke(ctx), roles.Delete(ctx, r.name, metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
	})
	r.bind()
	return r
}

func rules(needs []lbhooks.Need) []rbacv1.PolicyRule {
	out := make([]rbacv1.PolicyRule, 0, len(needs))
	for _, n := range needs {
		out = append(out, rbacv1.PolicyRule{APIGroups: []string{n.Group}, Resources: []string{n.Resource}, Verbs: n.Verbs})
	}
	return out
}

func (r *reader) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// bind gives the user its role and returns when the API server heeds it.
func (r *reader) bind() {
	r.Helper()
	if len(r.needs) == 0 {
		return
	}
	_, err := cluster.Client().RbacV1().ClusterRoleBindings().Create(r.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r.name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: r.name}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	r.must(err)
	r.waitFor("its role counts", func(err error) bool { return err == nil })
}

// unbind takes the role away and returns when the API server heeds that.
func (r *reader) unbind() {
	r.Helper()
	r.must(r.revoke(r.Context()))
	r.waitFor("its role no longer counts", apierrors.IsForbidden)
}

func (r *reader) revoke(ctx context.Context) error {
	err := cluster.Client().RbacV1().ClusterRoleBindings().Delete(ctx, r.name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// waitFor reads what the hook needs first until the answer is as wanted.
func (r *reader) waitFor(what string, done func(error) bool) {
	r.Helper()
	need := r.needs[0]
	client := r.dynamic.Resource(schema.GroupVersionResource{Group: need.Group, Version: need.Version, Resource: need.Resource})
	r.must(controlplane.Poll(r.Context(), slowness*hooktestCall, what, func(ctx context.Context) (bool, string, error) {
		var err error
		if need.Verbs[0] == "get" {
			_, err = client.Namespace("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		} else {
			_, err = client.List(ctx, metav1.ListOptions{Limit: 1})
		}
		return done(err), "", nil
	}))
}

// Fail makes what the hook reads fail for real, as far as that can be done: the role is gone, the kind is gone. For the
// rest the proxy stands in: an API server that restarts, and one that does not answer.
func (r *reader) Fail(f hooktest.Fault) {
	r.Helper()
	switch f {
	case hooktest.Healthy:
		r.proxy.Answer(nil)
		r.bind()
	case hooktest.Flaky:
		r.proxy.Answer(restarting)
	case hooktest.Slow:
		r.proxy.Answer(silent)
	case hooktest.Forbidden:
		r.unbind()
	case hooktest.NotServed:
		r.must(customkinds.Remove(r.Context(), admin, r.remove...))
	}
}

func restarting(w http.ResponseWriter, _ *http.Request) bool {
	http.Error(w, "apiserver is shutting down", http.StatusServiceUnavailable)
	return true
}

func silent(_ http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}

func wantEvidence(t *testing.T, p lbhooks.Proof, err error, out bool, says string) {
	t.Helper()
	if err != nil || p.Out != out || !strings.Contains(p.Evidence, says) {
		t.Errorf("out %t, evidence %q, error %v; want %t and %q", p.Out, p.Evidence, err, out, says)
	}
}
