package deploy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/deploy"
)

// TestGenerated: what is made of other files is up to date.
func TestGenerated(t *testing.T) {
	t.Parallel()
	files, err := deploy.Generated(deployDir)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := deploy.Stale(deployDir, files)
	if err != nil {
		t.Fatal(err)
	}
	if len(stale) > 0 {
		t.Errorf("not up to date: %s; run make manifests", strings.Join(stale, ", "))
	}
}

// TestVariants: the API server takes every object of every variant, with no warning, and a pod of the Deployment under the
// Pod Security that the variant's namespace enforces.
func TestVariants(t *testing.T) {
	t.Parallel()
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := v.kustomize.Render(kustomizeDir)
			taken(t, rendered(t, text, err))
		})
	}
}

// taken has the API server judge the objects of an install in a namespace of the test, with the labels of the install's.
func taken(t *testing.T, objects []*unstructured.Unstructured) {
	env, a := cluster.Env(t), admin(t)
	ns := find(t, objects, "Namespace", ownNamespace)
	label(env, ns.GetLabels())
	for _, u := range objects {
		u = u.DeepCopy()
		if u.GetNamespace() == "" {
			u.SetName(u.GetName() + "-" + env.Namespace)
		} else if u.SetNamespace(env.Namespace); u.GetKind() == "ResourceQuota" {
			continue // below
		}
		if err := a.create(t.Context(), u, metav1.DryRunAll); err != nil {
			t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
	podTaken(env, a, objects)
	if said := a.said(); said != "" {
		t.Errorf("the API server warns:\n%s", said)
	}
}

// label gives the test's namespace labels.
func label(env *controlplane.Env, labels map[string]string) {
	env.Helper()
	patch, err := yaml.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err == nil {
		patch, err = yaml.YAMLToJSON(patch)
	}
	if err == nil {
		_, err = env.Client.CoreV1().Namespaces().Patch(env.Context(), env.Namespace, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		env.Fatal(err)
	}
}

// podTaken: a pod of the Deployment is refused without the quota, where critical pods are limited, and taken with it.
func podTaken(env *controlplane.Env, a *api, objects []*unstructured.Unstructured) {
	env.Helper()
	create := func() error {
		pod, err := podOf(env, objects)
		if err == nil {
			_, err = env.Client.CoreV1().Pods(env.Namespace).Create(env.Context(), pod,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
		}
		return err
	}
	if err := create(); err == nil || !strings.Contains(err.Error(), "insufficient quota") { // the API server's is no Forbidden
		env.Errorf("a critical pod in a namespace without a quota: %v", err)
	}
	quota := find(env, objects, "ResourceQuota", "safedrain-gate").DeepCopy()
	quota.SetNamespace(env.Namespace)
	if err := a.create(env.Context(), quota); err != nil {
		env.Fatal(err)
	}
	env.Wait("the quota computed", func(ctx context.Context) (bool, string, error) {
		q, err := env.Client.CoreV1().ResourceQuotas(env.Namespace).Get(ctx, quota.GetName(), metav1.GetOptions{})
		return err == nil && len(q.Status.Used) > 0, "no status", err
	})
	env.Wait("a pod of the Deployment taken", func(context.Context) (bool, string, error) {
		err := create()
		return err == nil, fmt.Sprint(err), nil
	})
}

// podOf returns a pod as the Deployment makes it.
func podOf(env *controlplane.Env, objects []*unstructured.Unstructured) (*corev1.Pod, error) {
	d := as[appsv1.Deployment](env, find(env, objects, "Deployment", "safedrain-gate"))
	pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	pod.Namespace, pod.GenerateName = env.Namespace, d.Name+"-"
	return pod, nil
}

// TestPodSecurity: what the variants claim of Pod Security is true: restricted refuses the one that uses the host network,
// and for nothing else.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	env := cluster.Env(t)
	label(env, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	text, err := variants["host network"].kustomize.Render(kustomizeDir)
	pod, err := podOf(env, rendered(t, text, err))
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.PriorityClassName = ""
	_, err = env.Client.CoreV1().Pods(env.Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !apierrors.IsForbidden(err) {
		t.Fatalf("restricted Pod Security and the host network: %v", err)
	}
	_, violations, _ := strings.Cut(err.Error(), `"restricted:latest": `)
	for _, v := range strings.Split(violations, "), ") {
		if !strings.HasPrefix(v, "host namespaces (hostNetwork=true") && !strings.HasPrefix(v, "hostPort (") {
			t.Errorf("a violation that is not the host network's: %s", v)
		}
	}
}

// TestModesHaveToBeNamed: no overlay is an install. The API server refuses the Deployment and the webhooks, and its message
// says what to add; so nothing is intercepted by an install that is only half there.
func TestModesHaveToBeNamed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		overlay    string
		components []string
		says       []string
	}{
		"neither named":  {"self-signed", nil, []string{"components/mode-warn", "components/scale-warn"}},
		"cert-manager":   {"cert-manager", nil, []string{"components/mode-warn", "components/scale-warn"}},
		"strict":         {"strict", nil, []string{"components/mode-warn", "components/scale-warn"}},
		"no scale named": {"self-signed", []string{"mode-enforce"}, []string{"components/scale-warn"}},
		"no mode named":  {"self-signed", []string{"scale-deny"}, []string{"components/mode-warn"}},
	}
	guarded := []string{"Deployment", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, a := cluster.Env(t), admin(t)
			text, err := deploy.Composition{Overlay: c.overlay, Components: c.components}.Render(kustomizeDir)
			refused := 0
			for _, u := range rendered(t, text, err) {
				if !slices.Contains(guarded, u.GetKind()) {
					continue
				}
				refused++
				if u.GetNamespace() != "" {
					u.SetNamespace(env.Namespace)
				}
				err := a.create(t.Context(), u, metav1.DryRunAll)
				if !apierrors.IsInvalid(err) {
					t.Errorf("%s: %v", u.GetKind(), err)
					continue
				}
				for _, says := range c.says {
					if !strings.Contains(err.Error(), says) {
						t.Errorf("%s: the message does not say %s: %v", u.GetKind(), says, err)
					}
				}
			}
			if refused != len(guarded) {
				t.Errorf("%d of %d objects looked at", refused, len(guarded))
			}
		})
	}
}
