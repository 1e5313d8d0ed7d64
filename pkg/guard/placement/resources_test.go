package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

var always = corev1.ContainerRestartPolicyAlways

// TestRoom: noderesources/fit.go and k8s.io/component-helpers/resource.
func TestRoom(t *testing.T) {
	withInit := func(policy *corev1.ContainerRestartPolicy, amounts string) podOption {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{
				Name: "init", RestartPolicy: policy, Resources: corev1.ResourceRequirements{Requests: list(amounts)},
			})
		}
	}
	two := []*corev1.Node{aNode("n1"), aNode("n2", offers("cpu=2"))}
	run(t, map[string]ask{
		"what is left counts, not what there is": {
			nodes: two, there: []*corev1.Pod{aPod("a", on("n1"), requests("cpu=3"))}, pod: aPod("b", requests("cpu=1500m")),
			want: map[string]string{"n1": "too little cpu", "n2": ""},
		},
		"exactly enough is enough": {
			nodes: two, pod: aPod("b", requests("cpu=2,memory=8Gi")), want: map[string]string{"n1": "", "n2": ""},
		},
		"memory and storage": {
			nodes: []*corev1.Node{aNode("n1", offers("memory=1Gi")), aNode("n2", offers("ephemeral-storage=1Gi"))},
			pod:   aPod("b", requests("memory=2Gi,ephemeral-storage=2Gi")),
			want:  map[string]string{"n1": "too little memory", "n2": "too little ephemeral-storage"},
		},
		"init containers ask for the most, containers for the sum": {
			why: "the init container runs alone before the others", nodes: two,
			pod: aPod("b", requests("cpu=1"), withInit(nil, "cpu=3")), want: map[string]string{"n1": "", "n2": "too little cpu"},
		},
		"a sidecar runs beside": {
			why: "1 + 1500m > 2", nodes: two,
			pod: aPod("b", requests("cpu=1"), withInit(&always, "cpu=1500m")), want: map[string]string{"n1": "", "n2": "too little cpu"},
		},
		"overhead is added": {
			nodes: two, pod: aPod("b", requests("cpu=2"), func(p *corev1.Pod) { p.Spec.Overhead = list("cpu=100m") }),
			want: map[string]string{"n1": "", "n2": "too little cpu"},
		},
		"requests of the pod as a whole win over those of containers": {
			nodes: two, pod: aPod("b", requests("cpu=1"), func(p *corev1.Pod) {
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu=3")}
			}), want: map[string]string{"n1": "", "n2": "too little cpu"},
		},
		"extended resources": {
			nodes: []*corev1.Node{aNode("n1", offers("example.com/gpu=1")), aNode("n2")}, pod: aPod("b", requests("example.com/gpu=1")),
			want: map[string]string{"n1": "", "n2": "too little example.com/gpu"},
		},
		"an extended resource that is taken": {
			nodes: []*corev1.Node{aNode("n1", offers("example.com/gpu=1"))}, there: []*corev1.Pod{aPod("a", on("n1"), requests("example.com/gpu=1"))},
			pod: aPod("b", requests("example.com/gpu=1")), want: map[string]string{"n1": "too little example.com/gpu"},
		},
		"the number of pods": {
			nodes: []*corev1.Node{aNode("n1", offers("pods=1"))}, there: []*corev1.Pod{aPod("a", on("n1"))}, pod: aPod("b"),
			want: map[string]string{"n1": "too many pods"},
		},
		"a finished pod takes nothing": {
			nodes: []*corev1.Node{aNode("n1", offers("pods=1"))},
			there: []*corev1.Pod{aPod("a", on("n1"), requests("cpu=4"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })},
			pod:   aPod("b", requests("cpu=4")), want: map[string]string{"n1": ""},
		},
		"a pod that is ending still takes its room": {
			nodes: []*corev1.Node{aNode("n1")}, there: []*corev1.Pod{aPod("a", on("n1"), requests("cpu=4"), ending)},
			pod: aPod("b", requests("cpu=1")), want: map[string]string{"n1": "too little cpu"},
		},
		"a pod that is being resized takes the larger": {
			nodes: []*corev1.Node{aNode("n1")},
			there: []*corev1.Pod{aPod("a", on("n1"), requests("cpu=1"), func(p *corev1.Pod) {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: list("cpu=4")}}
			})},
			pod: aPod("b", requests("cpu=1")), want: map[string]string{"n1": "too little cpu"},
		},
		"nothing asked for fits a node that is overfull": {
			nodes: []*corev1.Node{aNode("n1")}, there: []*corev1.Pod{aPod("a", on("n1"), requests("cpu=5"))}, pod: aPod("b"),
			want: map[string]string{"n1": ""},
		},
	})
}

func ending(p *corev1.Pod) {
	now := p.CreationTimestamp
	p.DeletionTimestamp = &now
}

// TestResourcesAdd: adding and taking away leaves nothing behind.
func TestResourcesAdd(t *testing.T) {
	r := resourcesOf(corev1.ResourceList{"cpu": resource.MustParse("1"), "b/x": resource.MustParse("2"), "a/x": resource.MustParse("3")})
	var sum Resources
	sum.add(&r, 1)
	sum.add(&r, 1)
	sum.add(&r, -1)
	if sum.MilliCPU != 1000 || sum.of("a/x") != 3 || sum.of("b/x") != 2 || sum.of("c/x") != 0 {
		t.Errorf("sum %+v of %+v", sum, r)
	}
}
