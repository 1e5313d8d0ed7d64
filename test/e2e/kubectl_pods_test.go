package e2e

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/test/controlplane"
)

// template is a pod for the controllers that Env does not make, on one node.
func template(app, node string, mutate ...func(*corev1.Pod)) corev1.PodTemplateSpec {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{controlplane.AppLabel: app}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
		},
	}
	for _, m := range mutate {
		m(pod)
	}
	return corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
}

// selector selects the pods of an app.
func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{controlplane.AppLabel: app}}
}

func withEmptyDir(pod *corev1.Pod) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	})
}

func withFinalizer(pod *corev1.Pod) {
	pod.Finalizers = append(pod.Finalizers, "test.safedrain.dev/held")
}

// terminatesAfter lets a pod serve on for some seconds after its deletion.
func terminatesAfter(seconds int) func(*corev1.Pod) {
	return controlplane.With(map[string]string{controlplane.TerminatesAfter: fmt.Sprint(seconds)})
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels[key] = value }
}

func replicationController(e *controlplane.Env, app, node string) {
	one := int32(1)
	pod := template(app, node)
	rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: corev1.ReplicationControllerSpec{
		Replicas: &one, Selector: map[string]string{controlplane.AppLabel: app}, Template: &pod,
	}}
	_, err := e.Client.CoreV1().ReplicationControllers(e.Namespace).Create(e.Context(), rc, metav1.CreateOptions{})
	must(e, err)
	e.PodsReady(app, 1)
}

func replicaSet(e *controlplane.Env, app, node string) {
	one := int32(1)
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &one, Selector: selector(app), Template: template(app, node),
	}}
	_, err := e.Client.AppsV1().ReplicaSets(e.Namespace).Create(e.Context(), rs, metav1.CreateOptions{})
	must(e, err)
	e.PodsReady(app, 1)
}

func daemonSet(e *controlplane.Env, app, node string, mutate ...func(*corev1.Pod)) *appsv1.DaemonSet {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: appsv1.DaemonSetSpec{
		Selector: selector(app), Template: template(app, node, mutate...),
	}}
	ds, err := e.Client.AppsV1().DaemonSets(e.Namespace).Create(e.Context(), ds, metav1.CreateOptions{})
	must(e, err)
	e.PodsReady(app, 1)
	return ds
}

// daemonSetPodFinished leaves a finished pod of a DaemonSet that is being deleted, since its controller would remove it.
func daemonSetPodFinished(e *controlplane.Env, app, node string) {
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: app, Finalizers: []string{"test.safedrain.dev/held"}},
		Spec:       appsv1.DaemonSetSpec{Selector: selector(app), Template: template(app, "nowhere")},
	}
	sets := e.Client.AppsV1().DaemonSets(e.Namespace)
	ds, err := sets.Create(e.Context(), ds, metav1.CreateOptions{})
	must(e, err)
	must(e, sets.Delete(e.Context(), app, metav1.DeleteOptions{}))
	e.Cleanup(func() { // before that of the namespace
		_, err := sets.Patch(context.Background(), app, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil {
			e.Error(err)
		}
	})
	pod := e.Pod(app+"-0", node)
	finish(e, pod, corev1.PodSucceeded)
	owner := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":%q,"uid":%q,"controller":true}]}}`, ds.Name, ds.UID)
	_, err = e.Client.CoreV1().Pods(e.Namespace).Patch(e.Context(), pod.Name, types.MergePatchType, []byte(owner), metav1.PatchOptions{})
	must(e, err)
}

// daemonSetPodOrphaned leaves the pod of a DaemonSet that was deleted without it.
func daemonSetPodOrphaned(e *controlplane.Env, app, node string) {
	daemonSet(e, app, node)
	orphan := metav1.DeletePropagationOrphan
	must(e, e.Client.AppsV1().DaemonSets(e.Namespace).Delete(e.Context(), app, metav1.DeleteOptions{PropagationPolicy: &orphan}))
	e.Wait("pod of "+app+" orphaned", func(ctx context.Context) (bool, string, error) {
		pods, err := e.Client.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controlplane.AppLabel + "=" + app})
		return err == nil && len(pods.Items) == 1 && len(pods.Items[0].OwnerReferences) == 0, "owned", err
	})
}

func job(e *controlplane.Env, app, node string, mutate ...func(*corev1.Pod)) corev1.Pod {
	pod := template(app, node, append(mutate, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })...)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: batchv1.JobSpec{Template: pod}}
	_, err := e.Client.BatchV1().Jobs(e.Namespace).Create(e.Context(), j, metav1.CreateOptions{})
	must(e, err)
	return e.PodsReady(app, 1)[0]
}

// finish ends a pod as a kubelet does whose containers have exited.
func finish(e *controlplane.Env, pod *corev1.Pod, phase corev1.PodPhase) {
	patch := fmt.Sprintf(`{"status":{"phase":%q,"conditions":[{"type":"Ready","status":"False","reason":"PodCompleted"}]}}`, phase)
	_, err := e.Client.CoreV1().Pods(e.Namespace).Patch(e.Context(), pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	must(e, err)
}

// podsOn lists the pods of the test on a node, but for MetalLB's speakers: they stay as long as the node does.
func podsOn(e *controlplane.Env, node string) []corev1.Pod {
	e.Helper()
	list, err := e.Client.CoreV1().Pods(e.Namespace).List(e.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), LabelSelector: "component!=speaker",
	})
	must(e, err)
	return list.Items
}

func getNode(e *controlplane.Env, name string) *corev1.Node {
	e.Helper()
	node, err := e.Client.CoreV1().Nodes().Get(e.Context(), name, metav1.GetOptions{})
	must(e, err)
	return node
}

// must ends the test on an error.
func must(e *controlplane.Env, err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}
