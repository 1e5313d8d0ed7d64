package controlplane

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// AppLabel carries the name of the Deployment, Service or budget that a pod belongs to.
const AppLabel = "app"

// Node returns a node that is Ready, has room and answers to the labels that a kubelet sets.
func Node(name string) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("1000"),
	}
	now := metav1.Now()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
			}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
		},
	}
}

// Nodes makes n nodes for the pods of this test and returns their names. Each call goes on numbering where the one before
// stopped. A mutate function may change a node before it is created.
func (e *Env) Nodes(n int, mutate ...func(*corev1.Node)) []string {
	e.Helper()
	names := make([]string, 0, n)
	for range n {
		e.nodes++
		node := Node(fmt.Sprintf("%s-%d", e.Namespace, e.nodes))
		node.Labels[PoolLabel] = e.Namespace
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{
			// Of this machine, so that nothing is sent elsewhere: their ports refuse unless a test listens there.
			Type: corev1.NodeInternalIP, Address: fmt.Sprintf("127.1.%d.%d", e.nodes/250, e.nodes%250+1),
		})
		for _, m := range mutate {
			m(node)
		}
		created, err := e.Client.CoreV1().Nodes().Create(e.Context(), node, metav1.CreateOptions{})
		e.created("node", node.Name, err)
		names = append(names, created.Name)
	}
	return names
}

// template is the pod that everything here makes: on the nodes of this test, labelled with the name of the app.
func (e *Env) template(app string) corev1.PodTemplateSpec {
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{AppLabel: app}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}},
	}
	if !e.anyNode {
		template.Spec.NodeSelector = map[string]string{PoolLabel: e.Namespace}
	}
	return template
}

// Pod makes a pod that no controller owns, on a node, and waits until it is Ready unless it is told never to be.
func (e *Env) Pod(name, node string, mutate ...func(*corev1.Pod)) *corev1.Pod {
	e.Helper()
	template := e.template(name)
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Spec.NodeName = name, node
	for _, m := range mutate {
		m(pod)
	}
	pods := e.Client.CoreV1().Pods(e.Namespace)
	pod, err := pods.Create(e.Context(), pod, metav1.CreateOptions{})
	e.created("pod", name, err)
	if pod.Annotations[Ready] == "false" {
		return pod
	}
	e.Wait("pod "+name+" Ready", func(ctx context.Context) (bool, string, error) {
		pod, err = pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && podReady(pod), "not Ready", err
	})
	return pod
}

// Deployment makes a Deployment and returns its pods when all of them are Ready. With no replicas it returns at once.
func (e *Env) Deployment(name string, replicas int32, mutate ...func(*appsv1.Deployment)) []corev1.Pod {
	e.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{AppLabel: name}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: name}},
			Template: e.template(name),
		},
	}
	for _, m := range mutate {
		m(d)
	}
	_, err := e.Client.AppsV1().Deployments(e.Namespace).Create(e.Context(), d, metav1.CreateOptions{})
	e.created("deployment", name, err)
	return e.PodsReady(name, int(*d.Spec.Replicas))
}

// PodsReady waits until n pods of an app are Ready and not terminating, and returns them.
func (e *Env) PodsReady(app string, n int) []corev1.Pod {
	e.Helper()
	var ready []corev1.Pod
	e.Wait(fmt.Sprintf("%d pods of %s Ready", n, app), func(ctx context.Context) (bool, string, error) {
		list, err := e.Client.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: AppLabel + "=" + app})
		if err != nil {
			return false, "", err
		}
		ready = ready[:0]
		for i := range list.Items {
			if podReady(&list.Items[i]) && list.Items[i].DeletionTimestamp == nil {
				ready = append(ready, list.Items[i])
			}
		}
		return len(ready) == n, fmt.Sprintf("%d of %d pods Ready", len(ready), len(list.Items)), nil
	})
	return ready
}

func podReady(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return pod.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// Service makes a NodePort Service of policy Local for the pods of an app of the same name.
func (e *Env) Service(app string, mutate ...func(*corev1.Service)) *corev1.Service {
	e.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeNodePort,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Selector:              map[string]string{AppLabel: app},
			Ports:                 []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, m := range mutate {
		m(svc)
	}
	created, err := e.Client.CoreV1().Services(e.Namespace).Create(e.Context(), svc, metav1.CreateOptions{})
	e.created("service", app, err)
	return created
}

// ServiceStatus gives a Service of type LoadBalancer its addresses, as the controller of a balancer does.
func (e *Env) ServiceStatus(svc *corev1.Service, addresses ...string) {
	e.Helper()
	svc = svc.DeepCopy()
	svc.Status.LoadBalancer.Ingress = nil
	for _, ip := range addresses {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	if _, err := e.Client.CoreV1().Services(e.Namespace).UpdateStatus(e.Context(), svc, metav1.UpdateOptions{}); err != nil {
		e.Fatalf("update the status of service %q: %v", svc.Name, err)
	}
}

// Budget makes a PodDisruptionBudget for the pods of an app and waits until the disruption controller has computed it.
func (e *Env) Budget(app string, minAvailable intstr.IntOrString, mutate ...func(*policyv1.PodDisruptionBudget)) {
	e.Helper()
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &minAvailable, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: app}},
		},
	}
	for _, m := range mutate {
		m(pdb)
	}
	budgets := e.Client.PolicyV1().PodDisruptionBudgets(e.Namespace)
	created, err := budgets.Create(e.Context(), pdb, metav1.CreateOptions{})
	e.created("budget", pdb.Name, err)
	e.Wait("budget "+created.Name+" computed", func(ctx context.Context) (bool, string, error) {
		pdb, err := budgets.Get(ctx, created.Name, metav1.GetOptions{})
		return err == nil && pdb.Status.ObservedGeneration == pdb.Generation && len(pdb.Status.Conditions) > 0, "not computed", err
	})
}

// With returns a function that adds annotations to a pod, for Pod and, through Template, for Deployment.
func With(annotations map[string]string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { maps.Copy(pod.Annotations, annotations) }
}

// Template returns a function that adds annotations to the pods of a Deployment.
func Template(annotations map[string]string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { maps.Copy(d.Spec.Template.Annotations, annotations) }
}
