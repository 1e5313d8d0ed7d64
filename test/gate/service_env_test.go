package gate

import (
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// gates are those of the own cluster, by their names; they end before it.
var gates struct {
	sync.Mutex
	by map[string]*gated
}

// oneGate returns the gate of that name in the own cluster, which is made when a test first needs it.
func oneGate(t testing.TB, name string, replicas int, args ...string) *gated {
	t.Helper()
	c := own.get(t)
	gates.Lock()
	defer gates.Unlock()
	if g := gates.by[name]; g != nil {
		return g
	}
	if gates.by == nil {
		gates.by = map[string]*gated{}
	}
	g := install(t, c, name, replicas, args...)
	gates.by[name] = g
	atEnd(g.uninstall)
	return g
}

// longReady makes a node one that has been Ready for an hour: younger ones raise no floor.
func longReady(n *corev1.Node) {
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
	}
}

// podless is a Deployment whose pods never run: their selector names no node.
func podless(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{controlplane.AppLabel: name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Paused: true,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{"test.safedrain.dev/nowhere": ""},
					Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
				},
			},
		},
	}
}

// spread makes a Deployment's pods spread evenly over nodes.
func spread(d *appsv1.Deployment) {
	honor := corev1.NodeInclusionPolicyHonor
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		NodeTaintsPolicy: &honor, LabelSelector: d.Spec.Selector,
	}}
}

// on returns how many Ready pods of an app each node has.
func on(e *controlplane.Env, app string) map[string]int {
	e.Helper()
	list, err := e.Client.CoreV1().Pods(e.Namespace).List(e.Context(), metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=" + app})
	if err != nil {
		e.Fatal(err)
	}
	nodes := map[string]int{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			nodes[p.Spec.NodeName]++
		}
	}
	return nodes
}
