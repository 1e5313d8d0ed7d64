package gcp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/gcp"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

const (
	zoneB   = "europe-west1-b"
	zoneC   = "europe-west1-c"
	backend = "k8s2-axyqjz2d-e-a-yuvhdy7i"
	neg     = "networkEndpointGroups"
	ig      = "instanceGroups"
	uid     = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	legacy  = "a0a1b2c3d4e5f60718293a4b5c6d7e8f"
)

func service(change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "a", UID: uid, Annotations: map[string]string{}}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = 32000
	for _, c := range change {
		c(svc)
	}
	return svc
}

func annotated(pairs ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for i := 0; i < len(pairs); i += 2 {
			s.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func class(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
}

func finalized(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Finalizers = []string{name} }
}

func rbs(s *corev1.Service) { annotated("service.kubernetes.io/backend-service", backend)(s) }

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	n.Spec.ProviderID = "gce://p/" + zoneB + "/vm-" + name
	for _, c := range change {
		c(n)
	}
	return n
}

func newHook(t *testing.T, c *cloud, values map[string]string) *gcp.Hook {
	t.Helper()
	o, err := lbhooks.NewOptions(gcp.Options(), values)
	if err != nil {
		t.Fatal(err)
	}
	return gcp.New(fake.NewClientset(), o, c.serve(t))
}

// balancer is a backend service over two zonal groups: the node's, and another zone's with vm-n2.
type balancer struct {
	cloud *cloud
	hook  *gcp.Hook
	svc   *corev1.Service
	kind  string // of the groups; "" for a target pool
}

func newBalancer(t *testing.T, kind string) *balancer {
	t.Helper()
	b := &balancer{cloud: newCloud(), svc: service(rbs), kind: kind}
	if kind == "" {
		b.svc = service(finalized("service.kubernetes.io/load-balancer-cleanup"))
	}
	b.hook = newHook(t, b.cloud, nil)
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *balancer) Hook() lbhooks.Hook     { return b.hook }
func (b *balancer) Target() lbhooks.Target { return lbhooks.Target{Service: b.svc, Node: node("n1")} }

func (b *balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: 20, States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.Slow},
	}
}

// Show sets the membership and health of vm-n1, and the health of vm-n2. Moving: still a member, its health not told.
// Lying: no member, and the balancer still finds it healthy (a pool: a member that is healthy). Nobody: gone, while
// vm-n2 is not healthy.
func (b *balancer) Show(_ context.Context, s hooktest.State) error {
	var own, ghosts []member
	second := member{zoneC, "vm-n2", "HEALTHY"}
	switch s {
	case hooktest.In:
		own = []member{{zoneB, "vm-n1", "HEALTHY"}}
	case hooktest.Moving:
		own = []member{{zoneB, "vm-n1", ""}}
	case hooktest.Lying:
		if b.kind == "" {
			own = []member{{zoneB, "vm-n1", "HEALTHY"}}
		}
		ghosts = []member{{zoneB, "vm-n1", "HEALTHY"}}
	case hooktest.Nobody:
		second.health = "UNHEALTHY"
	case hooktest.Out:
	}
	c := b.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.kind == "" {
		c.pools[legacy] = append(own, second)
		return nil
	}
	c.backends[backend] = []string{groupURL(zoneB, b.kind, "g"), groupURL(zoneC, b.kind, "g")}
	c.groups["zones/"+zoneB+"/"+b.kind+"/g"], c.groups["zones/"+zoneC+"/"+b.kind+"/g"] = own, []member{second}
	c.ghosts["zones/"+zoneB+"/"+b.kind+"/g"] = ghosts
	return nil
}

func (b *balancer) Fail(f hooktest.Fault) {
	b.cloud.always(map[hooktest.Fault]*answer{
		hooktest.Flaky:     {status: 403, reason: "rateLimitExceeded", message: "Quota exceeded"},
		hooktest.Forbidden: {status: 401, reason: "authError", message: "Invalid Credentials"},
		hooktest.Slow:      {hang: true},
	}[f])
}

func TestContract(t *testing.T) {
	for name, kind := range map[string]string{"NEG": neg, "instance group": ig, "target pool": ""} {
		t.Run(name, func(t *testing.T) {
			hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newBalancer(t, kind) })
		})
	}
}

func seats(r lbhooks.Rotation) string {
	var out []string
	for _, n := range []string{"n1", "n2", "n3"} {
		s := r.Seat(n)
		text := map[any]string{lbhooks.Yes: "Y", lbhooks.No: "N", lbhooks.Unknown: "?"}[s.In]
		if s.Eligible {
			text += "+"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func second(change func(*corev1.Node)) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Name == "n2" {
			change(n)
		}
	}
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

// Sources: ingress-gce pkg/utils/zonegetter, pkg/annotations and pkg/healthchecksl4; cloud-provider-gcp
// pkg/controller/service; cloud-provider controllers/service/controller.go.
func TestMatch(t *testing.T) {
	for name, test := range map[string]struct {
		svc   *corev1.Service
		node  func(*corev1.Node)
		seats string // "" for no match; a ready endpoint is on n1 and n2
	}{
		"backend service":      {svc: service(rbs), seats: "Y+ Y+ N+"},
		"class":                {svc: service(class("networking.gke.io/l4-regional-external")), seats: "Y+ Y+ N+"},
		"legacy class":         {svc: service(class("networking.gke.io/l4-regional-internal-legacy")), seats: "Y+ Y+ N+"},
		"another class":        {svc: service(rbs, class("other/x"))},
		"finalizer":            {svc: service(finalized("gke.networking.io/l4-netlb-v2")), seats: "Y+ Y+ N+"},
		"the provider's":       {svc: service(finalized("service.kubernetes.io/load-balancer-cleanup")), seats: "Y+ Y+ N+"},
		"another finalizer":    {svc: service(finalized("other/x"))},
		"nothing":              {svc: service()},
		"node port":            {svc: service(rbs, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })},
		"nodes elsewhere":      {svc: service(rbs), node: func(n *corev1.Node) { n.Spec.ProviderID = "kind://" + n.Name }},
		"policy Cluster":       {svc: service(rbs, func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "" }), seats: "Y+ Y+ Y+"},
		"no health check port": {svc: service(rbs, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }), seats: "Y+ Y+ Y+"},
		"label false":          {svc: service(rbs), node: second(label(lbhooks.ExcludeLabel, "false")), seats: "Y+ N N+"},
		"label of a drain": {svc: service(rbs), node: second(func(n *corev1.Node) {
			label(lbhooks.ExcludeLabel, "true")(n)
			n.Annotations["safedrain.dev/drain"] = "{}"
		}), seats: "Y+ ? N+"},
		"to be deleted": {svc: service(rbs), node: second(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }), seats: "Y+ N N+"},
		"an upgrade":    {svc: service(rbs), node: second(label("operation.gke.io", "drain")), seats: "Y+ N N+"},
		"virtual":       {svc: service(rbs), node: second(label("type", "virtual-kubelet")), seats: "Y+ N N+"},
		"not Ready and cordoned": {svc: service(rbs), node: func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}, seats: "Y+ Y+ N+"},
	} {
		t.Run(name, func(t *testing.T) {
			change := test.node
			if change == nil {
				change = func(*corev1.Node) {}
			}
			r, ok := gcp.New(nil, lbhooks.Options{}, gcp.SDK{}).Match(test.svc, &hooktest.Objects{
				AllNodes:  []*corev1.Node{node("n1", change), node("n2", change), node("n3", change)},
				AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(test.svc, discoveryv1.EndpointConditions{}, "n1", "n2")},
			})
			if ok != (test.seats != "") {
				t.Fatalf("matched %t: %+v", ok, r)
			}
			if !ok {
				return
			}
			if seats(r) != test.seats || r.Removal != lbhooks.RemovalLabel || !r.Provable || r.Hook != gcp.Name || r.Reason == "" || r.Evidence == "" {
				t.Errorf("seats %s, want %s: %+v", seats(r), test.seats, r)
			}
			if (r.HealthCheck != nil) != strings.Contains(test.seats, "N+") {
				t.Errorf("health check %+v", r.HealthCheck)
			}
		})
	}
}

func TestProve(t *testing.T) {
	two := member{zoneC, "vm-n2", "HEALTHY"}
	for name, test := range map[string]struct {
		own, ghosts []member
		other       member
		out         bool
	}{
		"healthy":                          {own: []member{{zoneB, "vm-n1", "HEALTHY"}}, other: two},
		"no member":                        {other: two, out: true},
		"no member, still healthy":         {ghosts: []member{{zoneB, "vm-n1", "HEALTHY"}}, other: two},
		"no member, unhealthy":             {ghosts: []member{{zoneB, "vm-n1", "UNHEALTHY"}}, other: two, out: true},
		"unhealthy":                        {own: []member{{zoneB, "vm-n1", "UNHEALTHY"}}, other: two, out: true},
		"unhealthy at one of two":          {own: []member{{zoneB, "vm-n1", "UNHEALTHY"}, {zoneB, "vm-n1", "HEALTHY"}}, other: two},
		"a member of unknown health":       {own: []member{{zoneB, "vm-n1", ""}}, other: two},
		"a state nobody knows":             {own: []member{{zoneB, "vm-n1", "DRAINING"}}, other: two},
		"no member, nobody healthy":        {other: member{zoneC, "vm-n2", "UNHEALTHY"}},
		"unhealthy, nobody healthy":        {own: []member{{zoneB, "vm-n1", "UNHEALTHY"}}, other: member{zoneC, "vm-n2", "UNHEALTHY"}},
		"another of that name, other zone": {other: member{zoneC, "vm-n1", "HEALTHY"}, out: true},
		"a longer name":                    {own: []member{{zoneB, "vm-n11", "HEALTHY"}}, other: two, out: true},
	} {
		for _, kind := range []string{neg, ig} {
			t.Run(name+", "+kind, func(t *testing.T) {
				c := newCloud()
				c.backends[backend] = []string{groupURL(zoneB, kind, "g"), groupURL(zoneC, kind, "g")}
				c.groups["zones/"+zoneB+"/"+kind+"/g"], c.ghosts["zones/"+zoneB+"/"+kind+"/g"] = test.own, test.ghosts
				c.groups["zones/"+zoneC+"/"+kind+"/g"] = []member{test.other}
				p, err := newHook(t, c, nil).Prove(t.Context(), lbhooks.Target{Service: service(rbs), Node: node("n1")})
				if err != nil || p.Out != test.out || p.Evidence == "" || test.out && *p.Settle != 30*time.Second {
					t.Errorf("%+v, %v; want out %t", p, err, test.out)
				}
			})
		}
	}
}

// A thousand members over several pages: the node is on the last one.
func TestPages(t *testing.T) {
	for _, kind := range []string{neg, ig} {
		c := newCloud()
		c.page = 300
		c.backends[backend] = []string{groupURL(zoneB, kind, "g")}
		var all []member
		for i := range 1000 {
			all = append(all, member{zoneB, fmt.Sprintf("vm-%04d", i), "HEALTHY"})
		}
		key := "zones/" + zoneB + "/" + kind + "/g"
		c.groups[key] = append(all, member{zoneB, "vm-n1", "UNHEALTHY"})
		hook := newHook(t, c, map[string]string{"settle": "5s"})
		at := lbhooks.Target{Service: service(rbs), Node: node("n1")}
		p, err := hook.Prove(t.Context(), at)
		if err != nil || !p.Out || *p.Settle != 5*time.Second || !strings.Contains(p.Evidence, "a member, UNHEALTHY; 1000 others healthy") {
			t.Errorf("%s: %+v, %v", kind, p, err)
		}
		if n := c.count("/listNetworkEndpoints") + c.count("/listInstances"); n != 4 {
			t.Errorf("%s: %d pages", kind, n)
		}
		if _, err := hook.Prove(t.Context(), at); err != nil || c.count("backendServices/"+backend) != 1 {
			t.Errorf("%s: %v, the backend service was read %d times", kind, err, c.count("backendServices/"+backend))
		}
	}
}

// A target pool is asked about one instance at a time, and of the others only until one is healthy.
func TestPool(t *testing.T) {
	c := newCloud()
	for i := range 1000 {
		c.pools[legacy] = append(c.pools[legacy], member{zoneC, fmt.Sprintf("vm-%04d", i), map[bool]string{true: "HEALTHY", false: "UNHEALTHY"}[i == 2]})
	}
	at := lbhooks.Target{Service: service(finalized("service.kubernetes.io/load-balancer-cleanup")), Node: node("n1")}
	p, err := newHook(t, c, nil).Prove(t.Context(), at)
	if err != nil || !p.Out || c.count("/getHealth") != 3 {
		t.Errorf("%+v, %v, %d calls", p, err, c.count("/getHealth"))
	}
}

func TestErrors(t *testing.T) {
	const denied = "Required 'compute.regionBackendServices.get' permission for 'projects/p/regions/europe-west1/backendServices/x'"
	for name, test := range map[string]struct {
		fault     answer
		permanent bool
		says      string
	}{
		"denied":             {answer{status: 403, reason: "forbidden", message: denied}, true, "not allowed compute.regionBackendServices.get on projects/p/regions/europe-west1/backendServices/x"},
		"denied, no details": {answer{status: 403, reason: "forbidden", message: "no"}, true, "not allowed compute.regionBackendServices.get on projects/p/regions/europe-west1/backendServices/" + backend},
		"expired":            {answer{status: 401, reason: "authError", message: "Invalid Credentials"}, true, "log in again"},
		"not enabled":        {answer{status: 403, reason: "accessNotConfigured", message: "Compute Engine API has not been used"}, true, "is not enabled"},
		"rate limited":       {answer{status: 403, reason: "rateLimitExceeded", message: "Rate Limit Exceeded"}, false, "rateLimitExceeded"},
		"too many":           {answer{status: 429, reason: "rateLimitExceeded", message: "Too many"}, false, "429"},
		"down":               {answer{status: 503, reason: "backendError", message: "down"}, false, "503"},
		"not there":          {answer{status: 404, reason: "notFound", message: "gone"}, false, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBalancer(t, neg)
			b.cloud.always(&test.fault)
			_, err := b.hook.Prove(t.Context(), b.Target())
			if err == nil || errors.Is(err, lbhooks.ErrUnavailable) != test.permanent || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v; want permanent %t, %q", err, test.permanent, test.says)
			}
			missing := b.hook.Check(t.Context(), []lbhooks.Target{b.Target(), b.Target()})
			if len(missing) != 1 || missing[0].Optional == test.permanent || !strings.Contains(missing[0].What, test.says) {
				t.Errorf("%+v", missing)
			}
		})
	}
}

func TestNoCredentials(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none.json"))
	hook := gcp.New(fake.NewClientset(), lbhooks.Options{}, gcp.SDK{})
	if _, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(rbs), Node: node("n1")}); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "no credentials") {
		t.Errorf("%v, want: no credentials", err)
	}
	if _, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(rbs), Node: &corev1.Node{}}); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "providerID") {
		t.Errorf("%v, want: no instance", err)
	}
	if _, err := gcp.New(nil, lbhooks.Options{}, gcp.SDK{}).Prove(t.Context(), lbhooks.Target{Service: service(rbs), Node: node("n1")}); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("offline: %v", err)
	}
}

// Groups that cannot be read prove nothing.
func TestOtherBackends(t *testing.T) {
	c := newCloud()
	c.backends[backend] = []string{"https://www.googleapis.com/compute/v1/projects/p/global/networkEndpointGroups/g"}
	if _, err := newHook(t, c, nil).Prove(t.Context(), lbhooks.Target{Service: service(rbs), Node: node("n1")}); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	c.backends[backend] = nil
	if p, err := newHook(t, c, nil).Prove(t.Context(), lbhooks.Target{Service: service(rbs), Node: node("n1")}); err != nil || p.Out {
		t.Errorf("%+v, %v: an empty balancer proves nothing", p, err)
	}
}

// The published role grants what the hook calls, and no more.
func TestRole(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "iam", "gcp.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var role struct{ IncludedPermissions []string }
	if err := yaml.Unmarshal(raw, &role); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(gcp.Permissions(), role.IncludedPermissions); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
