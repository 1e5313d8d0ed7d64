package deploy_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/test/controlplane"
)

const serviceAccount = "system:serviceaccount:" + ownNamespace + ":safedrain-gate"

// TestInstall applies a rendered install as it is shipped and looks at what comes of it. It is alone on the cluster: what is
// installed is there once.
func TestInstall(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(deployDir, "install", "enforce-clamp.yaml"))
	objects := rendered(t, text, err)
	env := cluster.Env(t)
	nodes := env.Nodes(4, inZones())
	apply(t, objects)
	t.Run("placement", func(t *testing.T) { placed(env.In(t), nodes) })
	t.Run("drain of its own node", func(t *testing.T) { ownDrain(env.In(t)) })
	t.Run("rights", func(t *testing.T) { rights(env.In(t)) })
	t.Run("hooks", func(t *testing.T) { hookRights(env.In(t), objects) })
	t.Run("as itself", func(t *testing.T) { asItself(env.In(t), objects) })
}

// inZones puts every other node into another zone.
func inZones() func(*corev1.Node) {
	n := 0
	return func(node *corev1.Node) {
		n++
		node.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", n%2)
	}
}

// apply creates objects in their order, without a warning, and takes them away after the test.
func apply(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	a := admin(t)
	ctx := context.WithoutCancel(t.Context())
	for _, u := range objects {
		err := a.create(t.Context(), u)
		if u.GetKind() == "Namespace" && apierrors.IsAlreadyExists(err) {
			err = nil
		}
		if err != nil {
			t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
		t.Cleanup(func() {
			if err := a.remove(ctx, u); err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
			}
		})
	}
	if said := a.said(); said != "" {
		t.Errorf("the API server warns:\n%s", said)
	}
}

// gatePods waits until as many pods of the gate are Ready as the Deployment wants, and returns them.
func gatePods(env *controlplane.Env) []corev1.Pod {
	env.Helper()
	var pods []corev1.Pod
	env.Wait("the gate's pods Ready", func(ctx context.Context) (bool, string, error) {
		d, err := env.Client.AppsV1().Deployments(ownNamespace).Get(ctx, "safedrain-gate", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		list, err := env.Client.CoreV1().Pods(ownNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=safedrain-gate"})
		if err != nil {
			return false, "", err
		}
		pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		return d.Status.AvailableReplicas == *d.Spec.Replicas && len(pods) == int(*d.Spec.Replicas), fmt.Sprintf("%+v", conditions(d)), nil
	})
	return pods
}

func conditions(d *appsv1.Deployment) []string {
	var all []string
	for _, c := range d.Status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s: %s", c.Type, c.Status, c.Message))
	}
	return all
}

// placed: the replicas share neither a node nor a zone.
func placed(env *controlplane.Env, nodes []string) {
	zones := map[string]bool{}
	on := map[string]bool{}
	pods := gatePods(env)
	for i := range pods {
		name := pods[i].Spec.NodeName
		node, err := env.Client.CoreV1().Nodes().Get(env.Context(), name, metav1.GetOptions{})
		if err != nil {
			env.Fatal(err)
		}
		on[name], zones[node.Labels[corev1.LabelTopologyZone]] = true, true
	}
	if len(on) != len(pods) || len(zones) != 2 {
		env.Errorf("%d pods on nodes %v (of %v) in zones %v", len(pods), on, nodes, zones)
	}
}

// ownDrain: `kubectl drain` of a node with a pod of the gate completes, although no gate answers.
func ownDrain(env *controlplane.Env) {
	before := gatePods(env)
	kubectl, err := env.Cluster.Programs().Kubectl()
	if err != nil {
		env.Fatal(err)
	}
	kubeconfig := filepath.Join(env.TempDir(), "kubeconfig")
	if err := env.Cluster.Kubeconfig(kubeconfig); err != nil {
		env.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(env.Context(), 3*time.Minute)
	defer cancel()
	node := before[0].Spec.NodeName
	out, err := exec.CommandContext(ctx, kubectl, "--kubeconfig", kubeconfig, "drain", node, "--timeout=150s").CombinedOutput()
	if err != nil {
		env.Fatalf("kubectl drain %s: %v\n%s", node, err, out)
	}
	after := gatePods(env)
	for i := range after {
		if after[i].Spec.NodeName == node {
			env.Errorf("a pod of the gate is on %s after its drain", node)
		}
	}
	if after[0].Spec.NodeName == after[1].Spec.NodeName {
		env.Errorf("both replicas are on %s after the drain", after[0].Spec.NodeName)
	}
}

// right is one question to the API server about the gate's ServiceAccount.
type right struct {
	verb, group, resource, subresource, namespace, name string
}

func (r right) String() string {
	return fmt.Sprintf("%s %s.%s/%s %s/%s", r.verb, r.resource, r.group, r.subresource, r.namespace, r.name)
}

// rights: the gate may do what it does, and nothing that would matter if it were taken over.
func rights(env *controlplane.Env) {
	may := []right{
		{"watch", "", "nodes", "", "", ""},
		{"patch", "", "nodes", "", "", "any"},
		{"watch", "", "services", "", "", ""},
		{"watch", "discovery.k8s.io", "endpointslices", "", "", ""},
		{"watch", "", "namespaces", "", "", ""},
		{"get", "", "pods", "", "shop", "any"},
		{"patch", "", "pods", "", "shop", "any"},
		{"get", "apps", "deployments", "", "shop", "any"},
		{"list", "apps", "replicasets", "", "shop", ""},
		{"get", "example.com", "anything", "scale", "shop", "any"},
		{"list", "autoscaling", "horizontalpodautoscalers", "", "shop", ""},
		{"create", "events.k8s.io", "events", "", "shop", ""},
		{"create", "coordination.k8s.io", "leases", "", ownNamespace, ""},
		{"update", "coordination.k8s.io", "leases", "", ownNamespace, "safedrain-gate"},
		{"get", "", "secrets", "", ownNamespace, "safedrain-gate-tls"},
		{"update", "", "secrets", "", ownNamespace, "safedrain-gate-tls"},
		{"patch", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", "safedrain-gate"},
		{"patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "", "safedrain-gate"},
		{"get", "", "configmaps", "", "kube-system", "cluster-autoscaler-status"},
	}
	mayNot := []right{
		{"create", "", "pods", "eviction", "shop", "any"},
		{"delete", "", "pods", "", "shop", "any"},
		{"create", "", "pods", "", "shop", ""},
		{"create", "", "pods", "exec", "shop", "any"},
		{"update", "", "nodes", "", "", "any"},
		{"delete", "", "nodes", "", "", "any"},
		{"patch", "", "nodes", "status", "", "any"},
		{"get", "", "secrets", "", "shop", "any"},
		{"get", "", "secrets", "", ownNamespace, "other"},
		{"list", "", "secrets", "", ownNamespace, ""},
		{"get", "", "configmaps", "", "kube-system", "any"},
		{"patch", "", "services", "", "shop", "any"},
		{"patch", "apps", "deployments", "", "shop", "any"},
		{"update", "apps", "deployments", "scale", "shop", "any"},
		{"create", "discovery.k8s.io", "endpointslices", "", "shop", ""},
		{"patch", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", "other"},
		{"create", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", ""},
		{"update", "coordination.k8s.io", "leases", "", "kube-system", "kube-scheduler"},
		{"patch", "cluster.x-k8s.io", "machines", "", "shop", "any"},
		{"bind", "rbac.authorization.k8s.io", "clusterroles", "", "", "any"},
		{"impersonate", "", "users", "", "", "any"},
	}
	for _, r := range may {
		if !allowed(env, r) {
			env.Errorf("not allowed: %s", r)
		}
	}
	for _, r := range mayNot {
		if allowed(env, r) {
			env.Errorf("allowed: %s", r)
		}
	}
}

func allowed(env *controlplane.Env, r right) bool {
	env.Helper()
	review, err := env.Client.AuthorizationV1().SubjectAccessReviews().Create(env.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: serviceAccount, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + ownNamespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource, Namespace: r.namespace, Name: r.name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		env.Fatal(err)
	}
	return review.Status.Allowed
}
