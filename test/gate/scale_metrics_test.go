package gate

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/test/controlplane"
)

const (
	metricsGroup   = "external.metrics.k8s.io"
	metricsVersion = "v1beta1"
)

// adapter is an aggregated API server that answers for external metrics: what a test says that they are, by namespace.
type adapter struct {
	mu     sync.Mutex
	values map[string]int64
}

var theAdapter struct {
	once sync.Once
	a    *adapter
}

// externalMetrics registers the adapter with the cluster, once.
func externalMetrics(t testing.TB, c *controlplane.Cluster) *adapter {
	t.Helper()
	theAdapter.once.Do(func() {
		a := &adapter{values: map[string]int64{}}
		server := httptest.NewTLSServer(a)
		atEnd(server.Close)
		port, err := strconv.Atoi(regexp.MustCompile(`[0-9]+$`).FindString(server.URL))
		if err != nil {
			t.Fatal(err)
		}
		// An API server resolves a Service of this type to its name: a way to loopback.
		_, err = c.Client().CoreV1().Services("kube-system").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "metrics-adapter"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		client, err := dynamic.NewForConfig(c.Config())
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}).Create(t.Context(),
			&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
				"metadata": map[string]any{"name": metricsVersion + "." + metricsGroup},
				"spec": map[string]any{
					"group": metricsGroup, "version": metricsVersion, "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
					"insecureSkipTLSVerify": true,
					"service":               map[string]any{"namespace": "kube-system", "name": "metrics-adapter", "port": int64(port)},
				},
			}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		theAdapter.a = a
	})
	if theAdapter.a == nil {
		t.Fatal("the metrics adapter was not registered")
	}
	return theAdapter.a
}

// set says what the metric is in a namespace.
func (a *adapter) set(namespace string, value int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.values[namespace] = value
}

var valuePath = regexp.MustCompile(`^/apis/` + metricsGroup + `/` + metricsVersion + `/namespaces/([^/]+)/([^/]+)$`)

// ServeHTTP answers discovery, and for the values of a metric.
func (a *adapter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	gv := metav1.GroupVersionForDiscovery{GroupVersion: metricsGroup + "/" + metricsVersion, Version: metricsVersion}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}, Name: metricsGroup,
		Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv,
	}
	var answer any
	match := valuePath.FindStringSubmatch(req.URL.Path)
	switch {
	case match != nil:
		a.mu.Lock()
		value := a.values[match[1]]
		a.mu.Unlock()
		answer = map[string]any{
			"apiVersion": gv.GroupVersion, "kind": "ExternalMetricValueList", "metadata": map[string]any{},
			"items": []map[string]any{{
				"metricName": match[2], "metricLabels": map[string]string{}, "timestamp": time.Now().UTC().Format(time.RFC3339),
				"value": resource.NewQuantity(value, resource.DecimalSI).String(),
			}},
		}
	case req.URL.Path == "/apis":
		answer = metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: []metav1.APIGroup{group}}
	case req.URL.Path == "/apis/"+metricsGroup:
		answer = group
	case req.URL.Path == "/apis/"+gv.GroupVersion:
		answer = metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv.GroupVersion,
			APIResources: []metav1.APIResource{{Name: "queue", Namespaced: true, Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get"}}},
		}
	default:
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
