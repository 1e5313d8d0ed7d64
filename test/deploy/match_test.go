package deploy_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/test/controlplane"
)

// recorder is a webhook server that allows everything and keeps what it was asked.
type recorder struct {
	server *httptest.Server

	mu     sync.Mutex
	asked  map[string][]string // by namespace: "webhook path subject"
	bodies []error
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{asked: map[string][]string{}}
	r.server = httptest.NewUnstartedServer(r)
	r.server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	r.server.StartTLS()
	t.Cleanup(r.server.Close)
	return r
}

// ServeHTTP allows a review.
func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	err := json.NewDecoder(req.Body).Decode(&review)
	r.mu.Lock()
	if err != nil || review.Request == nil {
		r.bodies = append(r.bodies, fmt.Errorf("%s: %v", req.URL.Path, err))
		r.mu.Unlock()
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	q := review.Request
	name, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	asked := strings.TrimSuffix(name, ".safedrain.dev") + " /" + path
	if ptr.Deref(q.DryRun, false) {
		asked += " dry"
	}
	r.asked[q.Namespace] = append(r.asked[q.Namespace], asked)
	r.mu.Unlock()
	review.Response = &admissionv1.AdmissionResponse{UID: q.UID, Allowed: true}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// take returns what was asked about a namespace since the last call, sorted, each once: the API server asks again when
// somebody else wrote the object meanwhile.
func (r *recorder) take(namespace string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.asked[namespace]
	delete(r.asked, namespace)
	slices.Sort(asked)
	return slices.Compact(asked)
}

// intercept makes the webhooks of a rendered install call the recorder, each on a path that begins with its name. Nothing
// else of them changes.
func (r *recorder) intercept(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	a := admin(t)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	for _, u := range objects {
		if !strings.HasSuffix(u.GetKind(), "WebhookConfiguration") {
			continue
		}
		u = u.DeepCopy()
		u.SetName("deploy-match")
		hooks, _, err := unstructured.NestedSlice(u.Object, "webhooks")
		if err != nil {
			t.Fatal(err)
		}
		for _, hook := range hooks {
			h := hook.(map[string]any)
			path, _, _ := unstructured.NestedString(h, "clientConfig", "service", "path")
			h["clientConfig"] = map[string]any{"url": r.server.URL + "/" + h["name"].(string) + path, "caBundle": base64.StdEncoding.EncodeToString(authority)}
		}
		if err := unstructured.SetNestedSlice(u.Object, hooks, "webhooks"); err != nil {
			t.Fatal(err)
		}
		if err := a.create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := a.remove(context.Background(), u); err != nil { // the test's own context has ended
				t.Error(err)
			}
		})
	}
}

var (
	asksNothing  []string
	asksScale    = []string{"scale /scale", "scale /scale/check"}
	asksReplicas = []string{"replicas /replicas"}
	asksEvict    = []string{"evict /evict"}
)

// TestMatch: which requests the API server sends to the gate, and which it does not: the conditions are compiled and
// evaluated by it, on what it really hands them.
func TestMatch(t *testing.T) {
	r := newRecorder(t)
	text, err := variants["strict"].kustomize.Render(kustomizeDir)
	r.intercept(t, rendered(t, text, err))
	env := cluster.Env(t)
	m := &match{Env: env, recorder: r}
	m.ready()
	t.Run("scale", func(t *testing.T) { m.in(t).scales() })
	t.Run("objects", func(t *testing.T) { m.in(t).objects() })
	t.Run("evictions", func(t *testing.T) { m.in(t).evictions() })
	t.Run("namespaces", func(t *testing.T) { m.in(t).namespaces() })
	t.Run("outage", func(t *testing.T) { m.in(t).outage() }) // the last: the recorder ends
	if len(r.bodies) > 0 {
		t.Error(r.bodies)
	}
}

// match is the place of TestMatch.
type match struct {
	*controlplane.Env
	recorder *recorder
}

func (m *match) in(t *testing.T) *match { return &match{m.Env.In(t), m.recorder} }

// ready waits until the API server knows the webhooks: its view of them lags.
func (m *match) ready() {
	m.Nodes(1)
	probe := m.deployment("probe", 1)
	n := int32(2)
	m.Wait("the webhooks known", func(ctx context.Context) (bool, string, error) {
		n++
		for _, replicas := range []int32{n, 1} {
			if err := m.setScale(ctx, probe, replicas); err != nil {
				return false, "", err
			}
		}
		asked := m.recorder.take(m.Namespace)
		return slices.Equal(asked, asksScale), fmt.Sprint(asked), nil
	})
}

// asks does something and compares what the gate was asked.
func (m *match) asks(what string, want []string, do func(context.Context) error) {
	m.Helper()
	m.asksOf(m.Namespace, what, want, do)
}

func (m *match) asksOf(namespace, what string, want []string, do func(context.Context) error) {
	m.Helper()
	m.recorder.take(namespace)
	if err := do(m.Context()); err != nil {
		m.Errorf("%s: %v", what, err)
	}
	if asked := m.recorder.take(namespace); !slices.Equal(asked, want) {
		m.Errorf("%s: asked %q, want %q", what, asked, want)
	}
}

// deployment makes one whose controller is not waited for.
func (m *match) deployment(name string, replicas int32) string {
	m.Helper()
	labels := map[string]string{controlplane.AppLabel: name}
	_, err := m.Client.AppsV1().Deployments(m.Namespace).Create(m.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels)},
	}, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
	return name
}

func template(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{controlplane.PoolLabel: "none"}, // it need not run
			Containers:   []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
		},
	}
}

func (m *match) setScale(ctx context.Context, name string, replicas int32) error {
	api := m.Client.AppsV1().Deployments(m.Namespace)
	s, err := api.GetScale(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.Spec.Replicas, s.ResourceVersion = replicas, "" // whoever wrote meanwhile
	if _, err = api.UpdateScale(ctx, name, s, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return m.scaled(ctx, name, replicas)
}

// scaled waits until a Deployment has its replicas in the API server's cache too.
func (m *match) scaled(ctx context.Context, name string, replicas int32) error {
	return inCache(ctx, replicas, func(ctx context.Context, opts metav1.GetOptions) (int32, error) {
		s, err := m.Client.AppsV1().Deployments(m.Namespace).GetScale(ctx, name, opts)
		if err != nil {
			return 0, err
		}
		return s.Spec.Replicas, nil
	})
}

// inCache waits for replicas in the API server's cache: a write begins with what that has, and is judged by it, once more when
// it turns out to be stale.
func inCache(ctx context.Context, want int32, get func(context.Context, metav1.GetOptions) (int32, error)) error {
	return controlplane.Poll(ctx, time.Minute, "the API server's cache", func(ctx context.Context) (bool, string, error) {
		got, err := get(ctx, metav1.GetOptions{ResourceVersion: "0"})
		return got == want, fmt.Sprintf("%d replicas, want %d", got, want), err
	})
}

// scales: fewer replicas by the scale of any kind, zero included, and nothing else.
func (m *match) scales() {
	name := m.deployment("web", 4)
	steps := []struct {
		what     string
		replicas int32
		asks     []string
	}{
		{"down", 3, asksScale},
		{"the same", 3, asksNothing},
		{"up", 5, asksNothing},
		{"to none", 0, asksScale},
		{"none again", 0, asksNothing},
		{"up from none", 1, asksNothing},
	}
	for _, s := range steps {
		m.asks("deployment scaled "+s.what, s.asks, func(ctx context.Context) error { return m.setScale(ctx, name, s.replicas) })
	}
	patch := func(replicas int32) func(context.Context) error {
		return func(ctx context.Context) error {
			body := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
			_, err := m.Client.AppsV1().Deployments(m.Namespace).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, "scale")
			if err != nil {
				return err
			}
			return m.scaled(ctx, name, replicas)
		}
	}
	m.asks("scale patched up", asksNothing, patch(3))
	m.asks("scale patched down", asksScale, patch(2))
	m.asks("scale patched to none", asksScale, patch(0))
	m.asks("a dry run", []string{"scale /scale dry", "scale /scale/check dry"}, func(ctx context.Context) error {
		if err := patch(2)(ctx); err != nil {
			return err
		}
		s, err := m.Client.AppsV1().Deployments(m.Namespace).GetScale(ctx, name, metav1.GetOptions{})
		if err == nil {
			s.Spec.Replicas, s.ResourceVersion = 1, ""
			_, err = m.Client.AppsV1().Deployments(m.Namespace).UpdateScale(ctx, name, s, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		}
		return err
	})
	m.otherKinds()
}

// otherKinds: a StatefulSet, a ReplicationController and a custom kind by their scales.
func (m *match) otherKinds() {
	a := admin(m)
	labels := map[string]any{controlplane.AppLabel: "other"}
	pod := map[string]any{
		"metadata": map[string]any{"labels": labels},
		"spec": map[string]any{
			"nodeSelector": map[string]any{controlplane.PoolLabel: "none"},
			"containers":   []any{map[string]any{"name": "main", "image": "example.invalid/app"}},
		},
	}
	kinds := []struct {
		apiVersion, kind, resource string
		spec                       map[string]any
	}{
		{"apps/v1", "StatefulSet", "statefulsets", map[string]any{"selector": map[string]any{"matchLabels": labels}, "serviceName": "x", "template": pod}},
		{"apps/v1", "ReplicaSet", "replicasets", map[string]any{"selector": map[string]any{"matchLabels": labels}, "template": pod}},
		{"v1", "ReplicationController", "replicationcontrollers", map[string]any{"selector": labels, "template": pod}},
		{"test.safedrain.dev/v1", "Scaled", "scaleds", map[string]any{}},
	}
	for _, k := range kinds {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": k.apiVersion, "kind": k.kind, "spec": k.spec}}
		u.SetName("other")
		u.SetNamespace(m.Namespace)
		k.spec["replicas"] = int64(3)
		if err := a.create(m.Context(), u); err != nil {
			m.Fatal(err)
		}
		resource, err := a.resource(u)
		if err != nil {
			m.Fatal(err)
		}
		scale := func(replicas int32) func(context.Context) error {
			return func(ctx context.Context) error {
				body := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
				if _, err := resource.Patch(ctx, "other", types.MergePatchType, body, metav1.PatchOptions{}, "scale"); err != nil {
					return err
				}
				return inCache(ctx, replicas, func(ctx context.Context, opts metav1.GetOptions) (int32, error) {
					u, err := resource.Get(ctx, "other", opts, "scale")
					if err != nil {
						return 0, err
					}
					n, _, err := unstructured.NestedInt64(u.Object, "spec", "replicas")
					return int32(n), err
				})
			}
		}
		m.asks(k.kind+" scaled down", asksScale, scale(1))
		m.asks(k.kind+" scaled up", asksNothing, scale(2))
		m.asks(k.kind+" scaled to none", asksScale, scale(0))
		m.asks(k.kind+" scaled up from none", asksNothing, scale(1))
	}
}

// objects: the replicas of the workloads themselves, but no rollout.
func (m *match) objects() {
	name := m.deployment("direct", 3)
	update := func(body string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := m.Client.AppsV1().Deployments(m.Namespace).Patch(ctx, name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
			return err
		}
	}
	m.asks("a Deployment's replicas down", asksReplicas, update(`{"spec":{"replicas":2}}`))
	m.asks("a Deployment's replicas up", asksNothing, update(`{"spec":{"replicas":4}}`))
	m.asks("a Deployment's image", asksNothing, update(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.invalid/b"}]}}}}`))
	m.asks("a Deployment's replicas to none", asksReplicas, update(`{"spec":{"replicas":0}}`))
	m.asks("a Deployment's replicas left to the default", asksNothing, update(`{"spec":{"replicas":null}}`))

	labels := map[string]string{controlplane.AppLabel: "sets"}
	api := m.Client.AppsV1().ReplicaSets(m.Namespace)
	owned := []metav1.OwnerReference{{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: "x", UID: "x", Controller: ptr.To(true)}}
	for what, c := range map[string]struct {
		owners []metav1.OwnerReference
		asks   []string
	}{"without": {nil, asksReplicas}, "with": {owned, asksNothing}} {
		set, err := api.Create(m.Context(), &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "set-" + what, OwnerReferences: c.owners},
			Spec: appsv1.ReplicaSetSpec{
				Replicas: ptr.To(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels),
			},
		}, metav1.CreateOptions{})
		if err != nil {
			m.Fatal(err)
		}
		m.asks("the replicas of a ReplicaSet "+what+" a controller down", c.asks, func(ctx context.Context) error {
			_, err := api.Patch(ctx, set.Name, types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{})
			return err
		})
	}
	m.rollout()
}

// rollout: the real controller scales the old ReplicaSet down to none, and the gate is not asked once.
func (m *match) rollout() {
	const name = "rolled"
	m.Deployment(name, 3)
	m.asks("a rollout", asksNothing, func(ctx context.Context) error {
		body := []byte(`{"spec":{"template":{"metadata":{"labels":{"revision":"2"}}}}}`)
		d, err := m.Client.AppsV1().Deployments(m.Namespace).Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
		if err != nil {
			return err
		}
		m.Wait("the rollout over", func(ctx context.Context) (bool, string, error) {
			now, err := m.Client.AppsV1().Deployments(m.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			s := now.Status
			return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == 3 && s.Replicas == 3, fmt.Sprintf("%+v", s), nil
		})
		return nil
	})
}

func (m *match) pod(namespace, name string) *corev1.Pod {
	m.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: template(nil).Spec}
	pod.Spec.NodeSelector, pod.Spec.NodeName = nil, m.Namespace+"-1"
	pod, err := m.Client.CoreV1().Pods(namespace).Create(m.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
	return pod
}

// evict asks for an eviction without effect on the pod.
func (m *match) evict(namespace, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		return m.Client.CoreV1().Pods(namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// evictions: bodies of both versions, and dry runs of both kinds.
func (m *match) evictions() {
	for name, c := range map[string]struct {
		do   func(ctx context.Context, pod string) error
		asks []string
	}{
		"v1": {func(ctx context.Context, pod string) error { return m.evict(m.Namespace, pod)(ctx) }, asksEvict},
		"v1beta1": {func(ctx context.Context, pod string) error {
			return m.Client.CoreV1().Pods(m.Namespace).EvictV1beta1(ctx, &policyv1beta1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}})
		}, asksEvict},
		"dry run in the body": {func(ctx context.Context, pod string) error {
			return m.Client.CoreV1().Pods(m.Namespace).EvictV1(ctx, &policyv1.Eviction{
				ObjectMeta: metav1.ObjectMeta{Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
			})
		}, asksEvict},
		"dry run in the query": {func(ctx context.Context, pod string) error {
			return m.Client.CoreV1().RESTClient().Post().AbsPath("/api/v1").Namespace(m.Namespace).Resource("pods").Name(pod).
				SubResource("eviction").Param("dryRun", metav1.DryRunAll).
				Body(&policyv1.Eviction{
					TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
					ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: m.Namespace},
				}).Do(ctx).Error()
		}, []string{"evict /evict dry"}},
	} {
		pod := m.pod(m.Namespace, strings.ReplaceAll("evict "+name, " ", "-"))
		m.asks("an eviction, "+name, c.asks, func(ctx context.Context) error { return c.do(ctx, pod.Name) })
	}
	pod := m.pod(m.Namespace, "deleted")
	m.asks("a deletion", asksNothing, func(ctx context.Context) error {
		return m.Client.CoreV1().Pods(m.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
	})
}

// namespaces: the gate's own is left alone, kube-system goes through the webhook that never fails.
func (m *match) namespaces() {
	m.Wait("the gate's own namespace there", func(ctx context.Context) (bool, string, error) { // another test's may be going
		own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ownNamespace}}
		_, err := m.Client.CoreV1().Namespaces().Create(ctx, own, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, "", err
		}
		own, err = m.Client.CoreV1().Namespaces().Get(ctx, ownNamespace, metav1.GetOptions{})
		return err == nil && own.DeletionTimestamp == nil, "terminating", err
	})
	for namespace, asks := range map[string][]string{
		ownNamespace: asksNothing, metav1.NamespaceSystem: {"evict-kube-system /evict"}, m.Namespace: asksEvict,
	} {
		pod := m.pod(namespace, "of-"+m.Namespace)
		m.asksOf(namespace, "an eviction in "+namespace, asks, m.evict(namespace, pod.Name))
	}
}

// outage: without the gate a scale-up and a scale-down pass, and an eviction in kube-system; another one does not.
func (m *match) outage() {
	name := m.deployment("down", 2)
	system, pod := m.pod(metav1.NamespaceSystem, "outage-of-"+m.Namespace), m.pod(m.Namespace, "outage")
	m.recorder.server.Close()
	for _, replicas := range []int32{4, 1} {
		if err := m.setScale(m.Context(), name, replicas); err != nil {
			m.Errorf("scaled to %d without the gate: %v", replicas, err)
		}
	}
	if err := m.evict(metav1.NamespaceSystem, system.Name)(m.Context()); err != nil {
		m.Errorf("an eviction in kube-system without the gate: %v", err)
	}
	if err := m.evict(m.Namespace, pod.Name)(m.Context()); !apierrors.IsInternalError(err) {
		m.Errorf("an eviction without the gate: %v", err)
	}
	m.counted()
}

// counted: the API server counts an outage in the series that the alerts read.
func (m *match) counted() {
	text, err := m.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	for _, series := range []string{
		`apiserver_admission_webhook_fail_open_count{name="scale.safedrain.dev"`,
		`apiserver_admission_webhook_fail_open_count{name="evict-kube-system.safedrain.dev"`,
		`apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="evict.safedrain.dev"`,
		`apiserver_admission_webhook_admission_duration_seconds_bucket{name="evict.safedrain.dev"`,
	} {
		if !strings.Contains(string(text), series) {
			m.Errorf("the API server has no %s", series)
		}
	}
}
