package lbhooks

import (
	"encoding/json"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
)

// Health is what a node's health check port says of a Service.
type Health string

// Passing: 200, of this Service, with an endpoint. Failing: 503. Strange: anything that is not to be believed, such as
// another Service's name or an empty 200.
const (
	HealthPassing Health = "passing"
	HealthFailing Health = "failing"
	HealthStrange Health = "strange"
)

// MaxHealthBody is more bytes than any proxy answers with.
const MaxHealthBody = 4096

// healthBody is the JSON of kube-proxy and of Cilium, read leniently: serviceProxyHealthy is kube-proxy's alone.
type healthBody struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      *int  `json:"localEndpoints"`
	ServiceProxyHealthy *bool `json:"serviceProxyHealthy"`
}

// ReadHealth reads the answer of a healthCheckNodePort, with one line for people: K pkg/proxy/healthcheck/service_health.go
// answers 200 or 503 with the Service's name and count, and an empty 200 for a Service that it just forgot.
func ReadHealth(service types.NamespacedName, code int, raw []byte) (Health, string) {
	var b healthBody
	parsed := json.Unmarshal(raw, &b) == nil && b.Service.Name != ""
	sick := b.ServiceProxyHealthy != nil && !*b.ServiceProxyHealthy
	switch {
	case parsed && (b.Service.Name != service.Name || b.Service.Namespace != service.Namespace):
		return HealthStrange, fmt.Sprintf("answers for %s/%s", b.Service.Namespace, b.Service.Name)
	case code == http.StatusServiceUnavailable && sick:
		return HealthFailing, "says 503, and that its proxy is not healthy"
	case code == http.StatusServiceUnavailable:
		return HealthFailing, "says 503"
	case code != http.StatusOK:
		return HealthStrange, fmt.Sprintf("says %d", code)
	case !parsed:
		return HealthStrange, "says 200 without naming the Service"
	case b.LocalEndpoints != nil && *b.LocalEndpoints == 0:
		return HealthStrange, "says 200 with 0 local endpoints"
	case sick:
		return HealthStrange, "says 200, but its proxy is not healthy"
	}
	return HealthPassing, "says 200"
}
