package azure_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/safedrain/safedrain/pkg/lbhooks/azure"
)

const (
	group    = "/subscriptions/S/resourceGroups/MC_rg"
	balancer = group + "/providers/Microsoft.Network/loadBalancers/kubernetes"
	scaleSet = group + "/providers/Microsoft.Compute/virtualMachineScaleSets/aks-np-vmss"
)

// backend is one backend of a pool or of a rule's health.
type backend struct {
	nic, address  string // resource ID of the IP configuration; address
	state, reason string
	byConfig      bool // the pool lists it as an IP configuration, not as a backend address
}

// ofScaleSet is a backend that is an instance of the scale set.
func ofScaleSet(instance int, state, reason string) backend {
	return backend{
		nic:     fmt.Sprintf("%s/virtualMachines/%d/networkInterfaces/aks-np-nic/ipConfigurations/ipconfig1", scaleSet, instance),
		address: fmt.Sprintf("10.224.0.%d", instance+4), state: state, reason: reason,
	}
}

// rule is a load balancing rule: its pools, and the health of its backends.
type rule struct {
	balancer, name string
	pools          []string
	health         []backend
}

// answer is what the cloud says instead of the truth: an error of the API, or a call that hangs.
type answer struct {
	status        int
	code, message string
	pause         int // seconds that it asks to wait
	hang          bool
}

// azureCloud is Azure Resource Manager with load balancers, behind its REST API.
type azureCloud struct {
	mu      sync.Mutex
	url     string
	rules   []rule
	pools   map[string][]backend // by resource ID
	page    int
	pending int     // looks at an operation before it is done
	states  bool    // operations tell their state elsewhere than their result
	broken  *answer // how every operation ends
	ops     map[string][]any
	forever *answer
	once    []answer
	calls   []string
}

func newCloud() *azureCloud {
	return &azureCloud{pools: map[string][]backend{}, page: 100, ops: map[string][]any{}}
}

// token is a credential of one token.
type token struct{ err error }

func (c token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "t0ken", ExpiresOn: time.Now().Add(time.Hour)}, c.err
}

// serve starts the API and returns what points the SDK at it; the SDK retries as often as said, without waiting.
func (c *azureCloud) serve(t *testing.T, retries int32) azure.SDK {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.url = server.URL
	if retries == 0 {
		retries = -1
	}
	options := &arm.ClientOptions{DisableRPRegistration: true}
	options.Cloud = cloud.Configuration{Services: map[cloud.ServiceName]cloud.ServiceConfiguration{
		cloud.ResourceManager: {Endpoint: server.URL, Audience: "https://management.example"},
	}}
	options.InsecureAllowCredentialWithHTTP = true
	options.Retry = policy.RetryOptions{MaxRetries: retries, RetryDelay: time.Millisecond, MaxRetryDelay: 2 * time.Millisecond}
	return azure.SDK{Credential: token{}, Options: options}
}

func (c *azureCloud) always(a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forever = a
}

func (c *azureCloud) count(end string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, call := range c.calls {
		if strings.HasSuffix(call, end) {
			n++
		}
	}
	return n
}

func (c *azureCloud) fault(call string) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
	if len(c.once) > 0 {
		a := c.once[0]
		c.once = c.once[1:]
		return &a
	}
	return c.forever
}

func (c *azureCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if f := c.fault(r.Method + " " + path); f != nil {
		if f.hang {
			<-r.Context().Done()
			return
		}
		if f.pause > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(f.pause))
		}
		reply(w, f.status, map[string]any{"error": map[string]any{"code": f.code, "message": f.message}})
		return
	}
	if r.Header.Get("Authorization") != "Bearer t0ken" {
		reply(w, 401, map[string]any{"error": map[string]any{"code": "AuthenticationFailed", "message": "no token"}})
		return
	}
	if r.URL.Query().Get("api-version") != "2025-05-01" {
		reply(w, 400, map[string]any{"error": map[string]any{"code": "MissingApiVersionParameter", "message": "The api-version query parameter (?api-version=) is required for all requests."}})
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := strings.Split(path, "/")
	switch last := parts[len(parts)-1]; {
	case r.Method == http.MethodGet && path == group+"/providers/Microsoft.Network/loadBalancers":
		c.list(w, r)
	case r.Method == http.MethodGet && strings.Contains(path, "/backendAddressPools/"):
		c.pool(w, path)
	case r.Method == http.MethodPost && last == "health":
		c.health(w, strings.TrimSuffix(path, "/health"))
	case r.Method == http.MethodGet && strings.Contains(path, "/operationResults/"):
		c.result(w, last)
	case r.Method == http.MethodGet && strings.Contains(path, "/operations/"):
		c.state(w, last)
	default:
		reply(w, 404, map[string]any{"error": map[string]any{"code": "ResourceNotFound", "message": "no such resource " + path}})
	}
}

func reply(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func ids(all []string) []any {
	var out []any
	for _, id := range all {
		out = append(out, map[string]any{"id": id})
	}
	return out
}

// list lists one load balancer a rule's balancer, a page of them at a time.
func (c *azureCloud) list(w http.ResponseWriter, r *http.Request) {
	var names []string
	rules := map[string][]any{}
	for _, one := range c.rules {
		if rules[one.balancer] == nil {
			names = append(names, one.balancer)
		}
		properties := map[string]any{"frontendPort": 80, "protocol": "Tcp", "backendAddressPools": ids(one.pools)}
		if len(one.pools) > 0 {
			properties["backendAddressPool"] = map[string]any{"id": one.pools[0]}
		}
		rules[one.balancer] = append(rules[one.balancer], map[string]any{"name": one.name, "id": one.balancer + "/loadBalancingRules/" + one.name, "properties": properties})
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("skip"))
	to := min(from+c.page, len(names))
	var value []any
	for _, id := range names[from:to] {
		value = append(value, map[string]any{"id": id, "name": id[strings.LastIndex(id, "/")+1:], "properties": map[string]any{"loadBalancingRules": rules[id]}})
	}
	body := map[string]any{"value": value}
	if to < len(names) {
		body["nextLink"] = fmt.Sprintf("%s%s?api-version=2025-05-01&skip=%d", c.url, r.URL.Path, to)
	}
	reply(w, 200, body)
}

func (c *azureCloud) pool(w http.ResponseWriter, path string) {
	all, ok := c.pools[path]
	if !ok {
		reply(w, 404, map[string]any{"error": map[string]any{"code": "ResourceNotFound", "message": "no such pool"}})
		return
	}
	var addresses, configurations []any
	for _, b := range all {
		if b.nic != "" {
			configurations = append(configurations, map[string]any{"id": b.nic})
		}
		if b.byConfig {
			continue
		}
		p := map[string]any{}
		if b.address != "" {
			p["ipAddress"] = b.address
		}
		if b.nic != "" {
			p["networkInterfaceIPConfiguration"] = map[string]any{"id": b.nic}
		}
		addresses = append(addresses, map[string]any{"name": "x", "properties": p})
	}
	reply(w, 200, map[string]any{"id": path, "name": "kubernetes", "properties": map[string]any{
		"loadBalancerBackendAddresses": addresses, "backendIPConfigurations": configurations,
	}})
}

// health begins an operation, as Azure does: its answer is somewhere else.
func (c *azureCloud) health(w http.ResponseWriter, id string) {
	for _, one := range c.rules {
		if one.balancer+"/loadBalancingRules/"+one.name != id {
			continue
		}
		var rows []any
		for _, b := range one.health {
			row := map[string]any{"ipAddress": b.address, "state": b.state, "reason": b.reason}
			if b.nic != "" {
				row["networkInterfaceIPConfigurationId"] = b.nic
			}
			rows = append(rows, row)
		}
		op := strconv.Itoa(len(c.ops))
		body := any(map[string]any{"up": len(rows), "down": 0, "loadBalancerBackendAddresses": rows})
		for range c.pending {
			c.ops[op] = append(c.ops[op], nil)
		}
		c.ops[op] = append(c.ops[op], body)
		c.told(w, op)
		w.Header().Set("Retry-After", "10")
		if c.states {
			w.Header().Set("Azure-AsyncOperation", c.at("operations", op))
		}
		reply(w, 202, nil)
		return
	}
	reply(w, 404, map[string]any{"error": map[string]any{"code": "ResourceNotFound", "message": "no such rule"}})
}

// at is where an operation is told of: its state, or its result.
func (c *azureCloud) at(kind, op string) string {
	return c.url + "/subscriptions/S/providers/Microsoft.Network/locations/westeurope/" + kind + "/" + op + "?api-version=2025-05-01"
}

func (c *azureCloud) told(w http.ResponseWriter, op string) {
	w.Header().Set("Location", c.at("operationResults", op))
}

// state is the state of an operation: the last in its queue is its result.
func (c *azureCloud) state(w http.ResponseWriter, op string) {
	queue := c.ops[op]
	switch {
	case len(queue) > 1:
		c.ops[op] = queue[1:]
		w.Header().Set("Retry-After", "10")
		reply(w, 200, map[string]any{"status": "InProgress"})
	case c.broken != nil:
		reply(w, 200, map[string]any{"status": "Failed", "error": map[string]any{"code": c.broken.code, "message": c.broken.message}})
	default:
		reply(w, 200, map[string]any{"status": "Succeeded"})
	}
}

// result is the result of an operation, 202 until it is there.
func (c *azureCloud) result(w http.ResponseWriter, op string) {
	queue := c.ops[op]
	switch {
	case len(queue) == 0:
		reply(w, 404, map[string]any{"error": map[string]any{"code": "NotFound", "message": "no such operation"}})
	case queue[0] == nil:
		c.ops[op] = queue[1:]
		c.told(w, op)
		w.Header().Set("Retry-After", "10")
		reply(w, 202, nil)
	case c.broken != nil:
		reply(w, c.broken.status, map[string]any{"error": map[string]any{"code": c.broken.code, "message": c.broken.message}})
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(queue[0])
	}
}
