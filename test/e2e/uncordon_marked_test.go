package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// TestUncordonMarked chooses nodes by what drains have left on them: --forgotten those that take pods again, --all-ours
// every one. It has an API server of its own, for these flags choose among all nodes there are.
func TestUncordonMarked(t *testing.T) {
	t.Parallel()
	c := controlplane.New(t, controlplane.Options{WithoutKwok: true, WithoutScheduler: true, WithoutControllerManager: true})
	own := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.Kubeconfig(own); err != nil {
		t.Fatal(err)
	}
	safedrain := program{path: binary, kubeconfig: own}
	const drained, forgotten, theirs, plain = "n1", "n2", "n3", "n4"
	all := []string{drained, forgotten, theirs, plain}
	for _, name := range all {
		node := controlplane.Node(name)
		node.Spec.ProviderID = "openstack:///" + name
		node.Spec.Unschedulable = name == theirs
		if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	balanced(t, c, all...)
	succeeds := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := safedrain.run(t, args...)
		if code != 0 {
			t.Fatalf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout + stderr
	}
	succeeds(drained)
	succeeds(forgotten)
	if _, stderr, code := (program{path: kubectlBin, kubeconfig: own}).run(t, "uncordon", forgotten); code != 0 {
		t.Fatal(stderr)
	}
	const out, back, cordoned = "claimed labelled cordoned", "", "cordoned"
	wantMarks(t, c, map[string]string{drained: out, forgotten: "claimed labelled", theirs: cordoned, plain: back})
	succeeds("uncordon", "--forgotten")
	wantMarks(t, c, map[string]string{drained: out, forgotten: back, theirs: cordoned, plain: back})
	succeeds("uncordon", "--all-ours")
	wantMarks(t, c, map[string]string{drained: back, forgotten: back, theirs: cordoned, plain: back})
	strayed(t, c, func() { succeeds("uncordon", "--all-ours") })
	for _, flag := range []string{"--forgotten", "--all-ours"} {
		if said := succeeds("uncordon", flag); said != "no node is withdrawn by safedrain: nothing to put back\n" {
			t.Errorf("uncordon %s: %q", flag, said)
		}
	}
	if _, stderr, code := safedrain.run(t, "uncordon", "--all-ours", plain); code != 2 {
		t.Errorf("a flag that chooses and a name: exit code %d, want 2\n%s", code, stderr)
	}
}

// strayed has a Deployment bear one replica more of a run whose node is gone, and checks that it is taken back.
func strayed(t *testing.T, c *controlplane.Cluster, undo func()) {
	t.Helper()
	deployments := c.Client().AppsV1().Deployments(metav1.NamespaceDefault)
	app := map[string]string{controlplane.AppLabel: "stray"}
	d, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "stray", Labels: map[string]string{surge.Label: "1-2-gone"}},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: app}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Status.ObservedGeneration = d.Generation + 1 // no controller is there to see the change
	if _, err = deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	undo()
	if d, err = deployments.Get(t.Context(), "stray", metav1.GetOptions{}); err != nil || *d.Spec.Replicas != 1 || len(d.Labels) > 0 {
		t.Errorf("%d replicas, labels %v, error %v; want 1 and none", *d.Spec.Replicas, d.Labels, err)
	}
}

// balanced makes a Service that a cloud sends to all nodes for, with an endpoint on each that goes with the node. It accepts
// that nothing proves a removal.
func balanced(t *testing.T, c *controlplane.Cluster, nodes ...string) {
	t.Helper()
	const namespace, name = metav1.NamespaceDefault, "web"
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{lbhooks.AnnotationSettle: "0s"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: localPolicy, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if _, err := c.Client().CoreV1().Services(namespace).Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	port, portName := int32(8080), "http"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.0.%d", i+1)}, NodeName: &node})
	}
	if _, err := c.Client().DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// wantMarks compares what stands on the nodes: claimed, labelled, cordoned.
func wantMarks(t *testing.T, c *controlplane.Cluster, want map[string]string) {
	t.Helper()
	list, err := c.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i := range list.Items {
		n, marks := &list.Items[i], ""
		_, claimed := n.Annotations[claim.Annotation]
		for _, mark := range []struct {
			stands bool
			text   string
		}{{claimed, " claimed"}, {lbhooks.ExcludedByPresence(n), " labelled"}, {n.Spec.Unschedulable, " cordoned"}} {
			if mark.stands {
				marks += mark.text
			}
		}
		got[n.Name] = marks[min(1, len(marks)):]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("on the nodes (-want +got):\n%s", diff)
	}
}
