package dataplane

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/safedrain/safedrain/test/controlplane"
)

// AppLabel carries the name of the workload or Service that a pod belongs to.
const AppLabel = controlplane.AppLabel

const podsTimeout = 60 * time.Second

// Env makes a namespace for a test; see [controlplane.Env]. Its pods go to the nodes of the lab and do serve.
func (l *Lab) Env(t testing.TB) *controlplane.Env { return l.Cluster.EnvAnyNode(t) }

// Namespace makes a namespace.
func (l *Lab) Namespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := l.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	return err
}

// Template is a pod with one container that runs the lab's server on DefaultPort, labelled with the app's name.
func Template(app string, options ...PodOption) corev1.PodTemplateSpec {
	t := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{AppLabel: app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}},
	}
	for _, option := range options {
		option(&t)
	}
	return t
}

func spread(otherwise corev1.UnsatisfiableConstraintAction) PodOption {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.TopologySpreadConstraints = append(t.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: otherwise,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: t.Labels[AppLabel]}},
		})
	}
}

// Deployment makes a Deployment and returns its pods when all of them are Ready.
func (l *Lab) Deployment(ctx context.Context, namespace, name string, replicas int32, options ...PodOption) ([]corev1.Pod, error) {
	_, err := l.Client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{AppLabel: name}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: selector(name), Template: Template(name, options...),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create deployment %s/%s: %w", namespace, name, err)
	}
	return l.PodsReady(ctx, namespace, name, int(replicas))
}

// DaemonSet makes a DaemonSet and returns its pods when those on all nodes are Ready.
func (l *Lab) DaemonSet(ctx context.Context, namespace, name string, options ...PodOption) ([]corev1.Pod, error) {
	_, err := l.Client.AppsV1().DaemonSets(namespace).Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{AppLabel: name}},
		Spec:       appsv1.DaemonSetSpec{Selector: selector(name), Template: Template(name, options...)},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create daemonset %s/%s: %w", namespace, name, err)
	}
	return l.PodsReady(ctx, namespace, name, len(l.Nodes))
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: app}}
}

// PodsReady waits until n pods of an app are Ready and not terminating, and returns them sorted by name.
func (l *Lab) PodsReady(ctx context.Context, namespace, app string, n int) ([]corev1.Pod, error) {
	var ready []corev1.Pod
	what := fmt.Sprintf("%d pods of %s/%s Ready", n, namespace, app)
	err := controlplane.Poll(ctx, podsTimeout, what, func(ctx context.Context) (bool, string, error) {
		list, err := l.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: AppLabel + "=" + app})
		if err != nil {
			return false, "", err
		}
		ready = slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil || !podReady(&pod) })
		return len(ready) == n, fmt.Sprintf("%d Ready", len(ready)), nil
	})
	return ready, err
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Service makes a NodePort Service of policy Local for the pods of an app, port 80 to DefaultPort. A change may make
// another of it. Of type LoadBalancer it gets a healthCheckNodePort.
func (l *Lab) Service(ctx context.Context, namespace, app string, change ...func(*corev1.Service)) (*corev1.Service, error) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeNodePort,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Selector:              map[string]string{AppLabel: app},
			Ports:                 []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(DefaultPort)}},
		},
	}
	if l.IPv6 {
		policy := corev1.IPFamilyPolicyRequireDualStack
		svc.Spec.IPFamilyPolicy = &policy
	}
	for _, c := range change {
		c(svc)
	}
	created, err := l.Client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create service %s/%s: %w", namespace, app, err)
	}
	return created, nil
}

// LoadBalancer makes a Service one of type LoadBalancer.
func LoadBalancer(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer }

// Endpoints returns the endpoints of a Service from all its EndpointSlices.
func (l *Lab) Endpoints(ctx context.Context, namespace, service string) ([]discoveryv1.Endpoint, error) {
	list, err := l.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	var endpoints []discoveryv1.Endpoint
	for i := range list.Items {
		endpoints = append(endpoints, list.Items[i].Endpoints...)
	}
	return endpoints, nil
}

// SetReady turns the readiness of a pod off or on again.
func (l *Lab) SetReady(ctx context.Context, namespace, pod string, ready bool) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, Ready, strconv.FormatBool(ready))
	_, err := l.Client.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// ContainerIDPrefix stands before the process id and the start time of a container's process in its status.
const ContainerIDPrefix = "process://"

// Signal sends a signal to the processes of a pod: SIGKILL is a crash, after which the agent starts them again as a kubelet
// does, at once the first time and later each time; SIGSTOP hangs them.
func (l *Lab) Signal(ctx context.Context, namespace, pod string, signal syscall.Signal) error {
	object, err := l.Client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	sent := 0
	for i := range object.Status.ContainerStatuses {
		c := &object.Status.ContainerStatuses[i]
		var p process
		id := strings.Replace(strings.TrimPrefix(c.ContainerID, ContainerIDPrefix), ".", " ", 1)
		if _, err := fmt.Sscan(id, &p.PID, &p.Start); err != nil || !p.alive() {
			continue // it does not run just now
		}
		if err := syscall.Kill(p.PID, signal); err != nil {
			return fmt.Errorf("signal container %q of pod %s/%s: %w", c.Name, namespace, pod, err)
		}
		sent++
	}
	if sent == 0 {
		return fmt.Errorf("pod %s/%s runs no process", namespace, pod)
	}
	return nil
}

// Gone waits until a pod of that name and UID is no longer there.
func (l *Lab) Gone(ctx context.Context, namespace, name string, uid types.UID) error {
	what := fmt.Sprintf("pod %s/%s gone", namespace, name)
	return controlplane.Poll(ctx, podsTimeout, what, func(ctx context.Context) (bool, string, error) {
		pod, err := l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return err == nil && pod.UID != uid, "still there", err
	})
}
