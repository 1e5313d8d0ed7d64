package gcp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/oauth2"

	"github.com/safedrain/safedrain/pkg/lbhooks/gcp"
)

// member is an instance in a group or pool, with its health there; "" for a member whose health is not told yet.
type member struct{ zone, name, health string }

// answer is what the cloud says instead of the truth: an error of the API, or a call that hangs.
type answer struct {
	status          int
	reason, message string
	hang            bool
}

// cloud is Compute Engine with state, behind its REST API.
type cloud struct {
	mu       sync.Mutex
	url      string
	backends map[string][]string // backend service -> URLs of its groups
	groups   map[string][]member // "zones/Z/KIND/NAME" -> members; one listed here is in the group
	ghosts   map[string][]member // health of instances that are in no list, by group
	pools    map[string][]member
	page     int
	forever  *answer
	faults   map[string][]answer // by the last part of the path
	calls    []string
}

func newCloud() *cloud {
	return &cloud{backends: map[string][]string{}, groups: map[string][]member{}, ghosts: map[string][]member{}, pools: map[string][]member{}, page: 500, faults: map[string][]answer{}}
}

// serve starts the API and returns what points the hook at it, with a token.
func (c *cloud) serve(t *testing.T) gcp.SDK {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.url = server.URL + "/compute/v1/"
	return gcp.SDK{Endpoint: c.url, Client: oauth2.NewClient(t.Context(), oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t0ken"}))}
}

func groupURL(zone, kind, name string) string {
	return "https://www.googleapis.com/compute/v1/projects/p/zones/" + zone + "/" + kind + "/" + name
}

func instanceURL(m member) string {
	return "https://www.googleapis.com/compute/v1/projects/p/zones/" + m.zone + "/instances/" + m.name
}

func (c *cloud) always(a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forever = a
}

func (c *cloud) count(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, made := range c.calls {
		if strings.HasSuffix(made, call) {
			n++
		}
	}
	return n
}

func (c *cloud) fault(path string) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, path)
	if c.forever != nil {
		return c.forever
	}
	last := path[strings.LastIndex(path, "/")+1:]
	if queue := c.faults[last]; len(queue) > 0 {
		c.faults[last] = queue[1:]
		return &queue[0]
	}
	return nil
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, "/compute/v1/projects/p/")
	if !ok {
		fail(w, 404, "notFound", "no such path "+r.URL.Path)
		return
	}
	if f := c.fault(path); f != nil {
		if f.hang {
			<-r.Context().Done()
			return
		}
		fail(w, f.status, f.reason, f.message)
		return
	}
	if r.Header.Get("Authorization") != "Bearer t0ken" {
		fail(w, 401, "required", "Login Required.")
		return
	}
	var body struct{ Group, Instance, HealthStatus, InstanceState string }
	_ = json.NewDecoder(r.Body).Decode(&body)
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := strings.Split(path, "/")
	switch kind, last := parts[2], parts[len(parts)-1]; {
	case kind == "backendServices" && last == "getHealth":
		c.groupHealth(w, parts[3], body.Group)
	case kind == "backendServices":
		c.backend(w, last)
	case kind == "networkEndpointGroups" && last == "listNetworkEndpoints", kind == "instanceGroups" && last == "listInstances":
		c.list(w, r, strings.TrimSuffix(path, "/"+last), kind)
	case kind == "targetPools" && last == "getHealth":
		c.poolHealth(w, parts[3], body.Instance)
	case kind == "targetPools":
		c.pool(w, last)
	default:
		fail(w, 404, "notFound", "no such call "+path)
	}
}

func reply(w http.ResponseWriter, body map[string]any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_ = json.NewEncoder(w).Encode(body)
}

func fail(w http.ResponseWriter, status int, reason, message string) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": status, "message": message, "errors": []any{map[string]any{"message": message, "domain": "global", "reason": reason}},
	}})
}

func (c *cloud) backend(w http.ResponseWriter, name string) {
	groups, ok := c.backends[name]
	if !ok {
		fail(w, 404, "notFound", "The resource 'projects/p/regions/europe-west1/backendServices/"+name+"' was not found")
		return
	}
	var backends []any
	for _, url := range groups {
		backends = append(backends, map[string]any{"group": url, "balancingMode": "CONNECTION"})
	}
	reply(w, map[string]any{"kind": "compute#backendService", "name": name, "backends": backends})
}

func (c *cloud) groupHealth(w http.ResponseWriter, backend, url string) {
	at := strings.Index(url, "zones/")
	if _, ok := c.backends[backend]; !ok || at < 0 {
		fail(w, 404, "notFound", "no such backend or group")
		return
	}
	key := url[at:]
	var out []any
	for _, m := range append(append([]member{}, c.groups[key]...), c.ghosts[key]...) {
		if m.health != "" {
			out = append(out, map[string]any{"instance": instanceURL(m), "ipAddress": "10.0.0.1", "port": 80, "healthState": m.health, "weightError": "UNAVAILABLE_WEIGHT"})
		}
	}
	reply(w, map[string]any{"kind": "compute#backendServiceGroupHealth", "healthStatus": out})
}

func (c *cloud) list(w http.ResponseWriter, r *http.Request, key, kind string) {
	all, ok := c.groups[key]
	if !ok {
		fail(w, 404, "notFound", "The resource 'projects/p/"+key+"' was not found")
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("pageToken"))
	to := min(from+c.page, len(all))
	var items []any
	for _, m := range all[from:to] {
		if kind == "networkEndpointGroups" {
			items = append(items, map[string]any{"networkEndpoint": map[string]any{"instance": m.name, "ipAddress": "10.0.0.1"}})
		} else {
			items = append(items, map[string]any{"instance": instanceURL(m), "status": "RUNNING"})
		}
	}
	body := map[string]any{"items": items}
	if to < len(all) {
		body["nextPageToken"] = fmt.Sprint(to)
	}
	reply(w, body)
}

func (c *cloud) pool(w http.ResponseWriter, name string) {
	all, ok := c.pools[name]
	if !ok {
		fail(w, 404, "notFound", "no such pool "+name)
		return
	}
	var urls []any
	for _, m := range all {
		urls = append(urls, instanceURL(m))
	}
	reply(w, map[string]any{"kind": "compute#targetPool", "name": name, "instances": urls})
}

func (c *cloud) poolHealth(w http.ResponseWriter, name, url string) {
	for _, m := range c.pools[name] {
		if instanceURL(m) == url {
			reply(w, map[string]any{"kind": "compute#targetPoolInstanceHealth", "healthStatus": []any{map[string]any{"instance": url, "healthState": m.health}}})
			return
		}
	}
	fail(w, 400, "invalid", "Invalid value for field 'resource.instance': not in the pool")
}
