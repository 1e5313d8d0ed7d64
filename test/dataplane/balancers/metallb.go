package balancers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

const (
	metallbNamespace = "metallb-system"
	metallbModule    = "go.universe.tf/metallb"
	speakerName      = "speaker"
	controllerName   = "controller"

	// The controller shares its node's network with a speaker, which has the usual port.
	controllerPort = 7473

	// noSpeaker on a node keeps the speaker away from it.
	noSpeaker = "test.safedrain.dev/no-speaker"
)

// metallbTargets are the programs of MetalLB that are run.
var metallbTargets = map[string]string{
	speakerName: metallbModule + "/" + speakerName, controllerName: metallbModule + "/" + controllerName,
}

// MetalLB is MetalLB in a lab, installed from its own manifests: speakers as a DaemonSet, which speak ARP and BGP
// themselves, and the controller as a Deployment, both in the networks of their nodes.
type MetalLB struct {
	lab     *dataplane.Lab
	dynamic dynamic.Interface
}

// InstallMetalLB builds MetalLB on first use, makes the cluster serve its kinds and starts it.
func InstallMetalLB(ctx context.Context, lab *dataplane.Lab) (*MetalLB, error) {
	programs, err := controlplane.OtherPrograms(ctx, "metallb", metallbTargets)
	if err != nil {
		return nil, err
	}
	sources, err := metallbSources(ctx)
	if err != nil {
		return nil, err
	}
	m := &MetalLB{lab: lab}
	if m.dynamic, err = dynamic.NewForConfig(lab.Config); err != nil {
		return nil, err
	}
	if err := m.define(ctx, filepath.Join(sources, "config", "crd", "bases")); err != nil {
		return nil, err
	}
	if err := lab.Namespace(ctx, metallbNamespace); err != nil {
		return nil, err
	}
	manifests := filepath.Join(sources, "config", "controllers")
	if err := m.runSpeakers(ctx, filepath.Join(manifests, "speaker.yaml"), filepath.Join(programs, speakerName)); err != nil {
		return nil, err
	}
	if err := m.runController(ctx, filepath.Join(manifests, "controller.yaml"), filepath.Join(programs, controllerName)); err != nil {
		return nil, err
	}
	return m, errors.Join(m.waitPods(ctx, speakerName, len(lab.Nodes)), m.waitPods(ctx, controllerName, 1))
}

// metallbSources is the directory of MetalLB's module in the module cache.
func metallbSources(ctx context.Context) (string, error) {
	dir, err := controlplane.OtherModule(ctx, "metallb")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", metallbModule)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the sources of %s: %w", metallbModule, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// runSpeakers runs the DaemonSet of the manifest with our program. Without memberlist's secret its traffic is in the clear.
func (m *MetalLB) runSpeakers(ctx context.Context, manifest, program string) error {
	ds := &appsv1.DaemonSet{}
	if err := readManifest(manifest, ds); err != nil {
		return err
	}
	adapt(&ds.Spec.Template.Spec, program, "METALLB_ML_SECRET_KEY_PATH")
	ds.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: noSpeaker, Operator: corev1.NodeSelectorOpDoesNotExist}},
		}}},
	}}
	_, err := m.lab.Client.AppsV1().DaemonSets(metallbNamespace).Create(ctx, ds, metav1.CreateOptions{})
	return err
}

// runController runs the Deployment of the manifest with our program, without the webhook and what it needs.
func (m *MetalLB) runController(ctx context.Context, manifest, program string) error {
	d := &appsv1.Deployment{}
	if err := readManifest(manifest, d); err != nil {
		return err
	}
	spec := &d.Spec.Template.Spec
	adapt(spec, program, "METALLB_ML_SECRET_NAME", "METALLB_DEPLOYMENT")
	spec.HostNetwork = true
	c := &spec.Containers[0]
	c.Args = append(c.Args, fmt.Sprintf("--port=%d", controllerPort), "--webhook-mode=disabled") // the last of two wins
	c.Ports = slices.DeleteFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name != "monitoring" })
	c.Ports[0].ContainerPort = controllerPort
	_, err := m.lab.Client.AppsV1().Deployments(metallbNamespace).Create(ctx, d, metav1.CreateOptions{})
	return err
}

func readManifest(file string, object any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(data, object); err != nil {
		return fmt.Errorf("read %q: %w", file, err)
	}
	return nil
}

// adapt makes a pod run a program of this machine: without an image, volumes and the variables that name them, and ready
// as soon as it answers.
func adapt(spec *corev1.PodSpec, program string, without ...string) {
	c := &spec.Containers[0]
	c.Command = []string{program}
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return slices.Contains(without, e.Name) })
	c.Env = append(c.Env, corev1.EnvVar{Name: "METALLB_NAMESPACE", Value: metallbNamespace})
	c.VolumeMounts, spec.Volumes = nil, nil
	c.LivenessProbe = nil
	c.ReadinessProbe.InitialDelaySeconds, c.ReadinessProbe.PeriodSeconds = 0, 1
	spec.ServiceAccountName, spec.SecurityContext = "", nil
}

// waitPods waits until that many pods of a component are Ready.
func (m *MetalLB) waitPods(ctx context.Context, component string, count int) error {
	what := fmt.Sprintf("%d pods of MetalLB's %s Ready", count, component)
	return controlplane.Poll(ctx, startTimeout, what, func(ctx context.Context) (bool, string, error) {
		pods, err := m.pods(ctx, component)
		ready := 0
		for i := range pods {
			for _, c := range pods[i].Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		return ready == count, fmt.Sprintf("%d of %d Ready", ready, len(pods)), err
	})
}

func (m *MetalLB) pods(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := m.lab.Client.CoreV1().Pods(metallbNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=metallb,component=" + component})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// resources of MetalLB's configuration.
var (
	pools      = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	l2Adverts  = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "l2advertisements"}
	bgpAdverts = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "bgpadvertisements"}
	bgpPeers   = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta2", Resource: "bgppeers"}
)

// configure makes an object of MetalLB's configuration; one that is there already stays.
func (m *MetalLB) configure(ctx context.Context, gvr schema.GroupVersionResource, kind, name string, spec map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gvr.GroupVersion().String(), "kind": kind, "spec": spec}}
	u.SetName(name)
	_, err := m.dynamic.Resource(gvr).Namespace(metallbNamespace).Create(ctx, u, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s %q: %w", kind, name, err)
	}
	return nil
}

// forPool makes a Service one of type LoadBalancer with an address from a pool.
func forPool(pool string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		if svc.Annotations == nil {
			svc.Annotations = map[string]string{}
		}
		svc.Annotations["metallb.io/address-pool"] = pool
	}
}

// address waits until the controller has given the Service its address.
func (m *MetalLB) address(ctx context.Context, svc *corev1.Service) (addr netip.Addr, err error) {
	what := fmt.Sprintf("an address of service %s/%s", svc.Namespace, svc.Name)
	err = controlplane.Poll(ctx, startTimeout, what, func(ctx context.Context) (bool, string, error) {
		live, err := m.lab.Client.CoreV1().Services(svc.Namespace).Get(ctx, svc.Name, metav1.GetOptions{})
		if err != nil || len(live.Status.LoadBalancer.Ingress) == 0 {
			return false, "none yet", err
		}
		addr, err = netip.ParseAddr(live.Status.LoadBalancer.Ingress[0].IP)
		return err == nil, "", err
	})
	return addr, err
}

// announcers lists the nodes that status objects of one kind name for a Service, in whatever namespace, sorted.
func (m *MetalLB) announcers(ctx context.Context, kind schema.GroupVersionResource, svc *corev1.Service) ([]string, error) {
	selector := labels.Set{metallb.LabelServiceName: svc.Name, metallb.LabelServiceNamespace: svc.Namespace}
	list, err := m.dynamic.Resource(kind).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	var nodes []string
	for i := range list.Items {
		if node := list.Items[i].GetLabels()[metallb.LabelNode]; node != "" {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// Remove puts the label on the node that MetalLB obeys.
func (m *MetalLB) Remove(ctx context.Context, node string) error {
	return m.label(ctx, node, corev1.LabelNodeExcludeBalancers, `"true"`)
}

// Return takes the label away.
func (m *MetalLB) Return(ctx context.Context, node string) error {
	return m.label(ctx, node, corev1.LabelNodeExcludeBalancers, "null")
}

// label sets a label of a node to a JSON value.
func (m *MetalLB) label(ctx context.Context, node, key, value string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, value)
	_, err := m.lab.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}
