package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/test/controlplane"
)

// helmBinary is helm, of a module of its own.
var helmBinary = sync.OnceValues(func() (string, error) {
	dir, err := controlplane.OtherPrograms(context.Background(), "deploy/helm", map[string]string{"helm": "helm.sh/helm/v4/cmd/helm"})
	return filepath.Join(dir, "helm"), err
})

// helm runs helm without a cluster and returns what it prints, or an error with its complaint.
func helm(t testing.TB, args ...string) ([]byte, error) {
	t.Helper()
	binary, err := helmBinary()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+home+"/none")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return out.Bytes(), nil
}

// template renders the chart.
func chart(t testing.TB, namespace string, values []string, args ...string) ([]byte, error) {
	t.Helper()
	args = append([]string{"template", "safedrain-gate", chartDir, "--namespace", namespace, "--kube-version", "1.37.2"}, args...)
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return helm(t, args...)
}

// TestChartEqualsKustomize: both ways to install make the same objects, but for the namespace, which helm makes itself, and
// for helm's own labels.
func TestChartEqualsKustomize(t *testing.T) {
	t.Parallel()
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := v.kustomize.Render(kustomizeDir)
			want := plain(rendered(t, text, err))
			delete(want, "Namespace "+ownNamespace)
			text, err = chart(t, ownNamespace, v.helm)
			have := plain(rendered(t, text, err))
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(have))); diff != "" {
				t.Errorf("objects (-kustomize +chart):\n%s", diff)
			}
			for key, u := range want {
				if other, ok := have[key]; ok {
					if diff := cmp.Diff(u, other); diff != "" {
						t.Errorf("%s (-kustomize +chart):\n%s", key, diff)
					}
				}
			}
		})
	}
}

// helmLabels are those that only helm writes.
var helmLabels = []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"}

// plain returns objects by kind and name, without what says how they were made; the order of arguments means nothing.
func plain(objects []*unstructured.Unstructured) map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, u := range objects {
		labels := u.GetLabels()
		for _, name := range helmLabels {
			delete(labels, name)
		}
		u.SetLabels(labels)
		if containers, ok, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers"); ok {
			gate := containers[0].(map[string]any)
			args := gate["args"].([]any)
			slices.SortFunc(args[1:], func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
			_ = unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers")
		}
		out[u.GetKind()+" "+u.GetName()] = u.Object
	}
	return out
}

// TestChartWrongValues: a wrong value is refused before anything is made, and the message says which and what would be right.
func TestChartWrongValues(t *testing.T) {
	t.Parallel()
	good := values("warn", "warn")
	unchecked := []string{"--skip-schema-validation"}
	cases := map[string]struct {
		namespace string
		values    []string
		args      []string
		says      []string
	}{
		"no modes":                {says: []string{"mode", "scale"}},
		"no mode":                 {values: []string{"scale=warn"}, says: []string{"mode"}},
		"no scale":                {values: []string{"mode=warn"}, says: []string{"scale"}},
		"unknown mode":            {values: values("maybe", "warn"), says: []string{"/mode", "enforce", "warn", "off"}},
		"unknown scale":           {values: values("warn", "enforce"), says: []string{"/scale", "clamp", "deny"}},
		"no modes, no schema":     {args: unchecked, says: []string{"mode: name what is done about evictions: enforce, warn or off"}},
		"no scale, no schema":     {values: []string{"mode=warn"}, args: unchecked, says: []string{"scale: name what is done about scale-downs"}},
		"unknown, no schema":      {values: values("maybe", "warn"), args: unchecked, says: []string{`mode: "maybe" is none of enforce, warn, off`}},
		"misspelt value":          {values: append(good, "stict=true"), says: []string{"stict"}},
		"misspelt inner value":    {values: append(good, "image.repo=x"), says: []string{"/image", "repo"}},
		"unknown certificate":     {values: append(good, "certificate.source=vault"), says: []string{"/certificate/source", "self-signed", "cert-manager"}},
		"unknown hook":            {values: append(good, "hooks.read={metallb}"), says: []string{"/hooks/read", "metallb-l2"}},
		"the kubelet's port":      {values: append(good, "hostNetwork=true", "ports.webhook=10250"), says: []string{"ports.webhook: 10250 is the kubelet's"}},
		"issuer without a name":   {values: append(good, "certificate.source=cert-manager", "certificate.issuerRef.kind=ClusterIssuer"), says: []string{"certificate.issuerRef.name: name the Issuer"}},
		"no namespace of its own": {namespace: "kube-system", values: good, says: []string{"a namespace of its own"}},
		"a tag that is a number":  {values: append(good, "image.tag=12"), says: []string{"/image/tag", "string"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := c.namespace
			if namespace == "" {
				namespace = ownNamespace
			}
			out, err := chart(t, namespace, c.values, c.args...)
			if err == nil {
				t.Fatalf("rendered:\n%s", out)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("the message does not say %q: %v", says, err)
				}
			}
		})
	}
}

// TestChartValues: values that change what is made, each accepted by the API server.
func TestChartValues(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		file string
		want []string
		not  []string
	}{
		"off unquoted": {"mode: off\nscale: off\n", []string{"- --mode=off", "- --scale=off", `safedrain.dev/mode: "off"`}, nil},
		"everything": {everything, []string{
			"image: registry.example/safedrain@sha256:" + strings.Repeat("0", 64), "replicas: 3", "- --config=/etc/safedrain/hooks.yaml",
			`- "--hook-option=http.url=https://lb.example"`, `- "--deadline=3s"`, "eks.amazonaws.com/role-arn: arn:aws:iam::1:role/safedrain",
			"release: kube-prometheus-stack", "kind: ClusterIssuer", "name: LB_TOKEN", "mountPath: /run/safedrain/tls", "mountPath: /lb",
		}, []string{"kind: ResourceQuota", "kind: NetworkPolicy", "kind: Issuer", "ciliumbgp", "priorityClassName"}},
		"no hook's rights": {"mode: warn\nscale: warn\nhooks: {read: []}\n", nil, []string{"safedrain-gate-hooks", "metallb"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			text, err := chart(t, "gates", nil, "--values", file)
			objects := rendered(t, text, err)
			for _, want := range c.want {
				if !strings.Contains(string(text), want) {
					t.Errorf("not rendered: %s", want)
				}
			}
			for _, not := range append(c.not, ownNamespace) {
				if strings.Contains(string(text), not) {
					t.Errorf("rendered: %s", not)
				}
			}
			chartTaken(t, objects)
		})
	}
}

// chartTaken has the API server judge the objects of the chart.
func chartTaken(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	env, a := cluster.Env(t), admin(t)
	label(env, map[string]string{"pod-security.kubernetes.io/warn": "restricted"})
	for _, u := range objects {
		if u.GetNamespace() == "" {
			u.SetName(u.GetName() + "-" + env.Namespace)
		} else {
			u.SetNamespace(env.Namespace)
		}
		if err := a.create(t.Context(), u, "All"); err != nil {
			t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
	if said := a.said(); said != "" {
		t.Errorf("the API server warns:\n%s", said)
	}
}

// everything says something about nearly every value.
const everything = `
mode: enforce
scale: deny
strict: true
replicas: 3
image:
  repository: registry.example/safedrain
  digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
  pullSecrets: [{name: registry}]
certificate:
  source: cert-manager
  issuerRef: {name: corporate, kind: ClusterIssuer}
hooks:
  read: [metallb-l2, aws]
  config: |
    apiVersion: safedrain.dev/v1alpha1
    kind: HookConfig
  options: ["http.url=https://lb.example"]
rbac: {clusterAPI: true}
serviceAccount:
  annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/safedrain"}
priorityClassName: ""
networkPolicy: {enabled: false}
monitoring: {serviceMonitor: true, prometheusRule: true, dashboard: true, labels: {release: kube-prometheus-stack}}
nodeSelector: {pool: system}
tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [system]}]}]
podAnnotations: {example.com/a: b}
podLabels: {team: platform}
extraArgs: ["--deadline=3s"]
extraEnv: [{name: LB_TOKEN, valueFrom: {secretKeyRef: {name: lb, key: token}}}]
extraVolumes: [{name: lb, secret: {secretName: lb}}]
extraVolumeMounts: [{name: lb, mountPath: /lb, readOnly: true}]
`

// TestChartLint: helm itself finds nothing to complain about.
func TestChartLint(t *testing.T) {
	t.Parallel()
	out, err := helm(t, "lint", "--strict", "--set", "mode=enforce,scale=clamp", "--kube-version", "1.37.2", chartDir)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestChartVersion: the chart, its image and the kustomizations are of one version.
func TestChartVersion(t *testing.T) {
	t.Parallel()
	image := func(text []byte, err error) string {
		d := find(t, rendered(t, text, err), "Deployment", "safedrain-gate")
		containers, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
		return containers[0].(map[string]any)["image"].(string)
	}
	v := variants["self-signed, warn"]
	kustomized, templated := image(v.kustomize.Render(kustomizeDir)), image(chart(t, ownNamespace, v.helm))
	if kustomized != templated {
		t.Errorf("image %s by kustomize, %s by the chart", kustomized, templated)
	}
}
