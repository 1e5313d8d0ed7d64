package deploy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// TestShape: what no API server checks and what has to hold in every variant.
func TestShape(t *testing.T) {
	t.Parallel()
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := v.kustomize.Render(kustomizeDir)
			objects := rendered(t, text, err)
			d := as[appsv1.Deployment](t, find(t, objects, "Deployment", "safedrain-gate"))
			checkOrder(t, objects)
			checkReplicas(t, d)
			checkModes(t, d, objects)
			checkPorts(t, d, objects, v.hostNetwork())
			checkSelectors(t, d, objects)
			checkWebhooks(t, objects, strings.Contains(name, "strict"))
		})
	}
}

// checkOrder: the namespace comes first and the webhooks last, so that `kubectl apply` intercepts nothing before the gate is there.
func checkOrder(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	if kind := objects[0].GetKind(); kind != "Namespace" {
		t.Errorf("the first object is a %s", kind)
	}
	for i, u := range objects {
		webhooks := strings.HasSuffix(u.GetKind(), "WebhookConfiguration")
		if last := i >= len(objects)-2; webhooks != last {
			t.Errorf("%s is number %d of %d", u.GetKind(), i+1, len(objects))
		}
	}
}

// checkReplicas: two or more, spread over nodes and zones, and never all gone in a rollout.
func checkReplicas(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	if *d.Spec.Replicas < 2 {
		t.Errorf("%d replicas", *d.Spec.Replicas)
	}
	if down := d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue(); down >= int(*d.Spec.Replicas) {
		t.Errorf("a rollout may take away %d of %d replicas", down, *d.Spec.Replicas)
	}
	var keys []string
	for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
		keys = append(keys, c.TopologyKey)
	}
	if want := []string{corev1.LabelHostname, corev1.LabelTopologyZone}; !slices.Equal(keys, want) {
		t.Errorf("spread over %v, want %v", keys, want)
	}
}

// checkModes: the gate is told each mode once, and the labels say the same.
func checkModes(t *testing.T, d *appsv1.Deployment, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, mode := range []string{"mode", "scale"} {
		var said []string
		for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
			if value, ok := strings.CutPrefix(arg, "--"+mode+"="); ok {
				said = append(said, value)
			}
		}
		if len(said) != 1 {
			t.Fatalf("--%s is said %d times", mode, len(said))
		}
		for _, u := range objects {
			kind := u.GetKind()
			if kind != "Deployment" && !strings.HasSuffix(kind, "WebhookConfiguration") {
				continue
			}
			if label := u.GetLabels()["safedrain.dev/"+mode]; label != said[0] {
				t.Errorf("%s: label %s=%q, the gate is told %q", kind, mode, label, said[0])
			}
		}
	}
}

// checkPorts: the ports that the gate is told are those that the container names, and the Service, the probes and the
// policy name no others.
func checkPorts(t *testing.T, d *appsv1.Deployment, objects []*unstructured.Unstructured, host bool) {
	t.Helper()
	told := map[string]string{"webhook": "9443", "metrics": "8080", "health": "8081"} // the command's defaults
	flags := map[string]string{"--webhook-port=": "webhook", "--metrics-address=:": "metrics", "--health-address=:": "health"}
	gate := d.Spec.Template.Spec.Containers[0]
	for _, arg := range gate.Args {
		for flag, name := range flags {
			if value, ok := strings.CutPrefix(arg, flag); ok {
				told[name] = value
			}
		}
	}
	have := map[string]string{}
	for _, p := range gate.Ports {
		have[p.Name] = fmt.Sprint(p.ContainerPort)
	}
	for name, port := range told {
		if have[name] != port {
			t.Errorf("port %s: the gate is told %s, the container says %s", name, port, have[name])
		}
	}
	if host && told["webhook"] == "10250" {
		t.Error("port 10250 of a node is the kubelet's")
	}
	var named []string
	for _, p := range as[corev1.Service](t, find(t, objects, "Service", "safedrain-gate")).Spec.Ports {
		named = append(named, p.TargetPort.String())
	}
	for _, p := range []*corev1.Probe{gate.ReadinessProbe, gate.LivenessProbe} {
		named = append(named, p.HTTPGet.Port.String())
	}
	for _, name := range named {
		if have[name] == "" {
			t.Errorf("no port is called %s", name)
		}
	}
}

// checkSelectors: whatever selects the gate's pods selects them.
func checkSelectors(t *testing.T, d *appsv1.Deployment, objects []*unstructured.Unstructured) {
	t.Helper()
	pod := labels.Set(d.Spec.Template.Labels)
	matches := func(what string, selector *metav1.LabelSelector) {
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || s.Empty() || !s.Matches(pod) {
			t.Errorf("%s does not select the pods: %v %v", what, s, err)
		}
	}
	matches("the Deployment", d.Spec.Selector)
	matches("the budget", as[policyv1.PodDisruptionBudget](t, find(t, objects, "PodDisruptionBudget", "safedrain-gate")).Spec.Selector)
	matches("the Service", &metav1.LabelSelector{MatchLabels: as[corev1.Service](t, find(t, objects, "Service", "safedrain-gate")).Spec.Selector})
	for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
		matches("the spread over "+c.TopologyKey, c.LabelSelector)
	}
	policies := slices.ContainsFunc(objects, func(u *unstructured.Unstructured) bool { return u.GetKind() == "NetworkPolicy" })
	if host := d.Spec.Template.Spec.HostNetwork; policies == host {
		t.Errorf("host network %v, network policies %v", host, policies)
	}
	if policies {
		matches("the policy", &as[networkingv1.NetworkPolicy](t, find(t, objects, "NetworkPolicy", "safedrain-gate")).Spec.PodSelector)
	}
}

// webhook is what the two kinds of webhooks have in common.
type webhook struct {
	name     string
	client   admissionregistrationv1.WebhookClientConfig
	policy   *admissionregistrationv1.FailurePolicyType
	selector *metav1.LabelSelector
	timeout  *int32
	effects  *admissionregistrationv1.SideEffectClass
	match    *admissionregistrationv1.MatchPolicyType
}

func webhooksOf(t testing.TB, objects []*unstructured.Unstructured) []webhook {
	t.Helper()
	var all []webhook
	v := as[admissionregistrationv1.ValidatingWebhookConfiguration](t, find(t, objects, "ValidatingWebhookConfiguration", "safedrain-gate"))
	for _, w := range v.Webhooks {
		all = append(all, webhook{w.Name, w.ClientConfig, w.FailurePolicy, w.NamespaceSelector, w.TimeoutSeconds, w.SideEffects, w.MatchPolicy})
	}
	m := as[admissionregistrationv1.MutatingWebhookConfiguration](t, find(t, objects, "MutatingWebhookConfiguration", "safedrain-gate"))
	for _, w := range m.Webhooks {
		all = append(all, webhook{w.Name, w.ClientConfig, w.FailurePolicy, w.NamespaceSelector, w.TimeoutSeconds, w.SideEffects, w.MatchPolicy})
	}
	return all
}

// checkWebhooks: only evictions may ever fail with the gate, only where that was asked for, and never in the namespaces that
// the gate and the cluster need to come back.
func checkWebhooks(t *testing.T, objects []*unstructured.Unstructured, strict bool) {
	t.Helper()
	service := find(t, objects, "Service", "safedrain-gate")
	var failing []string
	for _, w := range webhooksOf(t, objects) {
		if s := w.client.Service; s == nil || s.Name != service.GetName() || s.Namespace != service.GetNamespace() || *s.Port != 443 {
			t.Errorf("%s calls %+v", w.name, w.client)
		}
		if *w.timeout != 10 || *w.effects != admissionregistrationv1.SideEffectClassNoneOnDryRun || *w.match != admissionregistrationv1.Equivalent {
			t.Errorf("%s: timeout %d, side effects %s, match policy %s", w.name, *w.timeout, *w.effects, *w.match)
		}
		selector, err := metav1.LabelSelectorAsSelector(w.selector)
		if err != nil {
			t.Fatal(err)
		}
		sees := func(ns string) bool { return selector.Matches(labels.Set{corev1.LabelMetadataName: ns}) }
		if sees(service.GetNamespace()) {
			t.Errorf("%s looks at the gate's own namespace", w.name)
		}
		if *w.policy == admissionregistrationv1.Fail {
			failing = append(failing, w.name)
			if sees(metav1.NamespaceSystem) {
				t.Errorf("%s may hold up kube-system", w.name)
			}
		}
	}
	var want []string
	if strict {
		want = []string{"evict.safedrain.dev"}
	}
	if !slices.Equal(failing, want) {
		t.Errorf("failurePolicy Fail: %v, want %v", failing, want)
	}
}
