package bench

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/apiproxy"
	"github.com/safedrain/safedrain/test/controlplane"
)

// operator is who drains: somebody who may do everything, but to whom priority and fairness holds as to anybody.
const operator = "operator"

// through returns a proxy to the API server in the name of the operator.
func through(t testing.TB, c *controlplane.Cluster) *apiproxy.Proxy {
	t.Helper()
	_, err := c.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: operator},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operator}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	config, err := c.UserConfig(operator)
	if err != nil {
		t.Fatal(err)
	}
	p, err := apiproxy.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
