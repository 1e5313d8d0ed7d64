package controlplane

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// PoolLabel carries the namespace of the test that a node was made for; the pods that an Env makes are bound to it.
const PoolLabel = "test.safedrain.dev/pool"

const (
	waitTimeout    = 2 * time.Minute
	cleanupTimeout = 2 * time.Minute
)

// Env is the place of one test in a shared cluster: a namespace, and nodes that only its pods are scheduled to. All its
// methods end the test when they fail, and wait for what they make.
type Env struct {
	testing.TB
	Cluster   *Cluster
	Client    kubernetes.Interface
	Namespace string
	nodes     int
	anyNode   bool // pods go to nodes that are not the test's own
}

// Env makes a namespace for a test. It and the nodes made through it are gone when the test has ended.
func (c *Cluster) Env(t testing.TB) *Env {
	t.Helper()
	name := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	ns, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: strings.TrimRight(name[:min(len(name), 40)], "-") + "-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create a namespace: %v", err)
	}
	e := &Env{TB: t, Cluster: c, Client: c.client, Namespace: ns.Name}
	t.Cleanup(e.cleanup)
	return e
}

// EnvAnyNode makes a namespace for a test whose pods may go to any node of the cluster; the nodes stay when it ends.
func (c *Cluster) EnvAnyNode(t testing.TB) *Env {
	t.Helper()
	e := c.Env(t)
	e.anyNode = true
	return e
}

// In returns the same place for a subtest, which then is the one that failures end.
func (e *Env) In(t testing.TB) *Env {
	sub := *e
	sub.TB = t
	return &sub
}

// cleanup removes the namespace with its pods, then the nodes, so that kwok is there for the pods until they are gone.
func (e *Env) cleanup() {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout) // the test's own context has ended
	defer cancel()
	err := Poll(ctx, cleanupTimeout, "remove namespace "+e.Namespace, func(ctx context.Context) (bool, string, error) {
		err := e.Client.CoreV1().Namespaces().Delete(ctx, e.Namespace, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return false, "", err
		}
		left, err := e.removePods(ctx)
		return left == 0, fmt.Sprintf("%d pods left", left), err
	})
	selector := metav1.ListOptions{LabelSelector: PoolLabel + "=" + e.Namespace}
	err = errors.Join(err, e.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, selector))
	if err != nil {
		e.Errorf("clean up: %v", err)
	}
}

// removePods deletes the pods of the namespace with no grace and without their finalizers, and returns how many it saw.
func (e *Env) removePods(ctx context.Context) (int, error) {
	pods := e.Client.CoreV1().Pods(e.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if len(pod.Finalizers) > 0 {
			_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return 0, err
			}
		}
	}
	if len(list.Items) > 0 {
		err = pods.DeleteCollection(ctx, *metav1.NewDeleteOptions(0), metav1.ListOptions{})
	}
	return len(list.Items), err
}

// Wait polls until check is done, and ends the test when that takes two minutes.
func (e *Env) Wait(what string, check func(context.Context) (done bool, state string, err error)) {
	e.Helper()
	if err := Poll(e.Context(), waitTimeout, what, check); err != nil {
		e.Fatal(err)
	}
}

// created ends the test if what was to be made could not be made.
func (e *Env) created(what, name string, err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("create %s %q: %v", what, name, err)
	}
}
