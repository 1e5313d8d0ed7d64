package controlplane_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/safedrain/safedrain/test/controlplane"
)

var (
	cluster *controlplane.Cluster
	upAfter time.Duration
)

func TestMain(m *testing.M) {
	if _, err := controlplane.Binaries(context.Background()); err != nil {
		panic(err)
	}
	started := time.Now()
	os.Exit(controlplane.Main(m, controlplane.Options{}, func(c *controlplane.Cluster) {
		cluster, upAfter = c, time.Since(started)
	}))
}

func TestVersion(t *testing.T) {
	t.Logf("up in %s", upAfter)
	v, err := cluster.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if v.GitVersion != "v1.37.2" {
		t.Errorf("version %q, want v1.37.2", v.GitVersion)
	}
}

// TestDeployment shows that the whole chain works: scheduler, kwok, controllers of replicas, slices and budgets.
func TestDeployment(t *testing.T) {
	env := cluster.Env(t)
	nodes := env.Nodes(3)
	started := time.Now()
	pods := env.Deployment("web", 6)
	t.Logf("6 pods Ready after %s", time.Since(started))
	env.Service("web")
	env.EndpointsReady("web", 6)
	env.Budget("web", intstr.FromInt32(6))
	addresses := map[string]bool{}
	for i := range pods {
		addresses[pods[i].Status.PodIP] = true
	}
	if len(addresses) != 6 || addresses[""] {
		t.Errorf("pods have the addresses %v, want six different ones", addresses)
	}
	eviction := evictionOf(&pods[0])
	if err := env.Client.PolicyV1().Evictions(env.Namespace).Evict(t.Context(), eviction); !apierrors.IsTooManyRequests(err) {
		t.Errorf("eviction against an exhausted budget: %v, want 429", err)
	}
	other := env.Pod("other", nodes[0])
	if err := env.Client.PolicyV1().Evictions(env.Namespace).Evict(t.Context(), evictionOf(other)); err != nil {
		t.Fatal(err)
	}
	env.Gone("other", other.UID)
}

// TestNodesBySpec shows that a node that somebody applies with a spec alone becomes usable.
func TestNodesBySpec(t *testing.T) {
	env := cluster.Env(t)
	env.Nodes(1, func(n *corev1.Node) { n.Status = corev1.NodeStatus{} })
	env.Deployment("web", 1)
}

func TestTermination(t *testing.T) {
	env := cluster.Env(t)
	node := env.Nodes(1)[0]
	const seconds, early = 4 * time.Second, time.Second
	tests := map[string]struct {
		annotations map[string]string
		grace       int64
		least, most time.Duration
	}{
		"at once":            {grace: 60, most: 50 * time.Second},
		"after some seconds": {annotations: map[string]string{controlplane.TerminatesAfter: "4"}, grace: 60, least: seconds - early, most: 50 * time.Second},
		"cut by the grace":   {annotations: map[string]string{controlplane.TerminatesAfter: "60"}, grace: 4, least: seconds - early, most: 50 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods := env.Client.CoreV1().Pods(env.Namespace)
			sub := env.In(t)
			pod := sub.Pod(strings.ReplaceAll(name, " ", "-"), node, controlplane.With(tc.annotations))
			started := time.Now()
			if err := pods.Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(tc.grace)); err != nil {
				t.Fatal(err)
			}
			sub.Gone(pod.Name, pod.UID)
			if took := time.Since(started); took < tc.least || took > tc.most {
				t.Errorf("took %s, want %s to %s", took, tc.least, tc.most)
			}
		})
	}
}

// TestServesWhileTerminating shows that a terminating pod stays an endpoint that serves, as kube-proxy needs it.
func TestServesWhileTerminating(t *testing.T) {
	env := cluster.Env(t)
	pod := env.Pod("web", env.Nodes(1)[0], controlplane.With(map[string]string{controlplane.TerminatesAfter: "never"}))
	env.Service("web")
	env.EndpointsReady("web", 1)
	if err := env.Client.CoreV1().Pods(env.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	env.Wait("endpoint serving and terminating", func(ctx context.Context) (bool, string, error) {
		slices, err := env.Slices(ctx, "web")
		if err != nil || len(slices) != 1 || len(slices[0].Endpoints) != 1 {
			return false, "no endpoint", err
		}
		c := slices[0].Endpoints[0].Conditions
		return !*c.Ready && *c.Serving && *c.Terminating, "not yet terminating", nil
	})
	if err := env.Client.CoreV1().Pods(env.Namespace).Delete(t.Context(), "web", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	env.Gone("web", pod.UID)
}

// TestSameNameAgain: a pod that is deleted at once and made anew under its name is a new pod to kwok.
func TestSameNameAgain(t *testing.T) {
	env := cluster.Env(t)
	nodes := env.Nodes(2)
	for i := range 40 {
		pod := env.Pod("again", nodes[i%2])
		if err := env.Client.CoreV1().Pods(env.Namespace).Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFinalizer shows that a finalizer holds a pod that has otherwise ended, and that its removal ends it.
func TestFinalizer(t *testing.T) {
	env := cluster.Env(t)
	pod := env.Pod("held", env.Nodes(1)[0], func(p *corev1.Pod) { p.Finalizers = []string{"test.safedrain.dev/hold"} })
	pods := env.Client.CoreV1().Pods(env.Namespace)
	if err := pods.Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	env.Wait("held pod finished", func(ctx context.Context) (bool, string, error) {
		p, err := pods.Get(ctx, "held", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodSucceeded && *p.DeletionGracePeriodSeconds == 0, "still running", err
	})
	if _, err := pods.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	env.Gone("held", pod.UID)
}

func TestReadinessToggles(t *testing.T) {
	env := cluster.Env(t)
	pod := env.Pod("web", env.Nodes(1)[0])
	env.Service("web")
	pods := env.Client.CoreV1().Pods(env.Namespace)
	for _, step := range []struct {
		annotation string
		ready      int
	}{{`"false"`, 0}, {`null`, 1}} {
		patch := []byte(`{"metadata":{"annotations":{"` + controlplane.Ready + `":` + step.annotation + `}}}`)
		if _, err := pods.Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		env.PodsReady("web", step.ready)
		env.EndpointsReady("web", step.ready)
	}
}

func TestUsers(t *testing.T) {
	config, err := cluster.UserConfig("somebody", "some-group")
	if err != nil {
		t.Fatal(err)
	}
	if err := listNodes(t, config); !apierrors.IsForbidden(err) {
		t.Errorf("a user without a role: %v, want 403", err)
	}
	config, err = cluster.ExpiredConfig("somebody", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if err := listNodes(t, config); err == nil || apierrors.IsForbidden(err) {
		t.Errorf("expired credentials: %v, want an error of authentication", err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.Kubeconfig(path); err != nil {
		t.Fatal(err)
	}
	config, err = clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := listNodes(t, config); err != nil {
		t.Errorf("by the kubeconfig: %v", err)
	}
}

// TestAPIServerRestart also shows that clusters run side by side: the shared one must not notice.
func TestAPIServerRestart(t *testing.T) {
	own := controlplane.New(t, controlplane.Options{WithoutKwok: true, WithoutScheduler: true, WithoutControllerManager: true})
	if err := own.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := listNodes(t, own.Config()); err == nil {
		t.Error("the API server answers although it is stopped")
	}
	if err := listNodes(t, cluster.Config()); err != nil {
		t.Errorf("the other cluster: %v", err)
	}
	if err := own.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := listNodes(t, own.Config()); err != nil {
		t.Errorf("after the start: %v", err)
	}
}

func evictionOf(pod *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
}

func listNodes(t *testing.T, config *rest.Config) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	return err
}
