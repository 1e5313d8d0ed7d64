package azure_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/azure"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

const (
	uid    = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	prefix = "a0a1b2c3d4e5f60718293a4b5c6d7e8f"
	pool   = balancer + "/backendAddressPools/kubernetes"
	pool2  = balancer + "/backendAddressPools/kubernetes-IPv6"
)

func service(change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "a", UID: uid, Annotations: map[string]string{}}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = 32000
	svc.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	for _, c := range change {
		c(svc)
	}
	return svc
}

// node is instance 0, 1 or 2 of the scale set: n1, n2, n3.
func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	instance := int(name[1] - '1')
	n.Spec.ProviderID = fmt.Sprintf("azure://%s/virtualMachines/%d", strings.Replace(scaleSet, "MC_rg", "mc_rg", 1), instance)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.224.0.%d", instance+4)}}
	for _, c := range change {
		c(n)
	}
	return n
}

func newHook(t *testing.T, sdk azure.SDK, values map[string]string) *azure.Hook {
	t.Helper()
	o, err := lbhooks.NewOptions(azure.Options(), values)
	if err != nil {
		t.Fatal(err)
	}
	return azure.New(fake.NewClientset(), o, sdk)
}

// newRules is a balancer with two rules of the Service and one of another, over one pool.
func newRules(pooled, first, second []backend) *azureCloud {
	c := newCloud()
	c.pools[pool] = pooled
	c.rules = []rule{
		{balancer, "b9999-TCP-80", []string{pool}, []backend{ofScaleSet(0, "Up", "Up_Probe_Success")}},
		{balancer, prefix + "-TCP-80", []string{pool}, first},
		{balancer, prefix + "-TCP-443", []string{pool}, second},
	}
	return c
}

// standard is a load balancer as the contract suite wants it.
type standard struct {
	cloud *azureCloud
	hook  *azure.Hook
}

func newStandard(t *testing.T) *standard {
	t.Helper()
	b := &standard{cloud: newRules(nil, nil, nil)}
	b.hook = newHook(t, b.cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg"})
	if err := b.Show(t.Context(), hooktest.In); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *standard) Hook() lbhooks.Hook { return b.hook }
func (b *standard) Target() lbhooks.Target {
	return lbhooks.Target{Service: service(), Node: node("n1")}
}

func (b *standard) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: 20, States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.Slow},
	}
}

// Show sets the pool and the health of the rules. Moving: in the pool, down at one rule and up at the other. Lying: the
// pool does not list the node, and a rule still finds it up. Nobody: gone, while the other backend is down.
func (b *standard) Show(_ context.Context, s hooktest.State) error {
	in, out := ofScaleSet(0, "Up", "Up_Probe_Success"), ofScaleSet(0, "Down", "Down_Probe_HttpStatusCodeError")
	other := ofScaleSet(1, "Up", "Up_Probe_Success")
	pooled, first, second := []backend{other}, []backend{other}, []backend{other}
	switch s {
	case hooktest.In:
		pooled, first, second = append(pooled, in), append(first, in), append(second, in)
	case hooktest.Moving:
		pooled, first, second = append(pooled, in), append(first, in), append(second, out)
	case hooktest.Lying:
		first = append(first, in)
	case hooktest.Nobody:
		second[0].state = "Down"
	case hooktest.Out:
	}
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	b.cloud.pools[pool], b.cloud.rules[1].health, b.cloud.rules[2].health = pooled, first, second
	return nil
}

func (b *standard) Fail(f hooktest.Fault) {
	b.cloud.always(map[hooktest.Fault]*answer{
		hooktest.Flaky:     {status: 429, code: "TooManyRequests", message: "The request was throttled."},
		hooktest.Forbidden: {status: 401, code: "ExpiredAuthenticationToken", message: "The access token expiry UTC time is earlier than current UTC time"},
		hooktest.Slow:      {hang: true},
	}[f])
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newStandard(t) })
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

// Sources: cloud-provider-azure pkg/provider/azure.go (nodes left out), pkg/provider/azure_loadbalancer.go (probes);
// cloud-provider controllers/service/controller.go.
func TestMatch(t *testing.T) {
	second := func(change func(*corev1.Node)) func(*corev1.Node) {
		return func(n *corev1.Node) {
			if n.Name == "n2" {
				change(n)
			}
		}
	}
	label := func(key, value string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels[key] = value }
	}
	for name, test := range map[string]struct {
		svc   *corev1.Service
		node  func(*corev1.Node)
		seats string // "" for no match; a ready endpoint is on n1 and n2
	}{
		"finalizer": {svc: service(), seats: "Y+ Y+ N+"},
		"annotation": {svc: service(func(s *corev1.Service) {
			s.Finalizers = nil
			s.Annotations["service.beta.kubernetes.io/azure-load-balancer-internal"] = "true"
		}), seats: "Y+ Y+ N+"},
		"nothing":         {svc: service(func(s *corev1.Service) { s.Finalizers = nil })},
		"a class":         {svc: service(func(s *corev1.Service) { c := "x"; s.Spec.LoadBalancerClass = &c })},
		"node port":       {svc: service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })},
		"nodes elsewhere": {svc: service(), node: func(n *corev1.Node) { n.Spec.ProviderID = "kind://" + n.Name }},
		"policy Cluster":  {svc: service(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "" }), seats: "Y+ Y+ Y+"},
		"a probe unreadable": {svc: service(func(s *corev1.Service) {
			s.Annotations["service.beta.kubernetes.io/azure-load-balancer-health-probe-interval"] = "x"
		}), seats: "Y+ Y+ Y+"},
		"label false": {svc: service(), node: second(label(lbhooks.ExcludeLabel, "false")), seats: "Y+ N N+"},
		"label of a drain": {svc: service(), node: second(func(n *corev1.Node) {
			label(lbhooks.ExcludeLabel, "true")(n)
			n.Annotations["safedrain.dev/drain"] = "{}"
		}), seats: "Y+ ? N+"},
		"unmanaged":     {svc: service(), node: second(label("kubernetes.azure.com/managed", "false")), seats: "Y+ N N+"},
		"to be deleted": {svc: service(), node: second(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }), seats: "Y+ N N+"},
		"virtual":       {svc: service(), node: second(label("type", "virtual-kubelet")), seats: "Y+ N N+"},
		"not Ready, cordoned": {svc: service(), node: func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}, seats: "Y+ Y+ N+"},
		"no health check port": {svc: service(func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }), seats: "Y+ Y+ Y+"},
	} {
		t.Run(name, func(t *testing.T) {
			change := test.node
			if change == nil {
				change = func(*corev1.Node) {}
			}
			r, ok := azure.New(nil, lbhooks.Options{}, azure.SDK{}).Match(test.svc, &hooktest.Objects{
				AllNodes:  []*corev1.Node{node("n1", change), node("n2", change), node("n3", change)},
				AllSlices: []*discoveryv1.EndpointSlice{hooktest.Slice(test.svc, discoveryv1.EndpointConditions{}, "n1", "n2")},
			})
			if ok != (test.seats != "") {
				t.Fatalf("matched %t: %+v", ok, r)
			}
			if !ok {
				return
			}
			if seats(r) != test.seats || r.Removal != lbhooks.RemovalLabel || !r.Provable || r.Hook != azure.Name || r.Reason == "" || r.Evidence == "" {
				t.Errorf("seats %s, want %s: %+v", seats(r), test.seats, r)
			}
			if (r.HealthCheck != nil) != strings.Contains(test.seats, "N+") {
				t.Errorf("health check %+v", r.HealthCheck)
			}
		})
	}
}

func TestProve(t *testing.T) {
	const ok, bad = "Up_Probe_Success", "Down_Probe_HttpStatusCodeError"
	own, ownDown, other := ofScaleSet(0, "Up", ok), ofScaleSet(0, "Down", bad), ofScaleSet(1, "Up", ok)
	config := func(b backend) backend { b.byConfig = true; return b }
	address := func(b backend) backend { b.nic = ""; return b }
	bare := func(b backend) backend {
		b.nic = group + "/providers/Microsoft.Network/networkInterfaces/vm-nic/ipConfigurations/x"
		return b
	}
	nowhere := func(b backend) backend { b.address = ""; return bare(b) }
	single := func(n *corev1.Node) {
		n.Spec.ProviderID = "azure://" + group + "/providers/Microsoft.Compute/virtualMachines/vm"
	}
	rows := func(all ...backend) []backend { return all }
	for name, test := range map[string]struct {
		node                  func(*corev1.Node)
		pooled, first, second []backend
		out                   bool
	}{
		"up":                              {pooled: rows(own, other), first: rows(own, other), second: rows(own, other)},
		"not in the pool":                 {pooled: rows(other), first: rows(other), second: rows(other), out: true},
		"not in the pool, still up":       {pooled: rows(other), first: rows(own, other), second: rows(other)},
		"not in the pool, down":           {pooled: rows(other), first: rows(ownDown, other), second: rows(other), out: true},
		"down everywhere":                 {pooled: rows(own, other), first: rows(ownDown, other), second: rows(ownDown, other), out: true},
		"down at one rule":                {pooled: rows(own, other), first: rows(ownDown, other), second: rows(own, other)},
		"in the pool, health not told":    {pooled: rows(own, other), first: rows(other), second: rows(other)},
		"as an IP configuration":          {pooled: rows(config(own), config(other)), first: rows(other), second: rows(other)},
		"as an address":                   {pooled: rows(address(own), address(other)), first: rows(address(other)), second: rows(address(other))},
		"addresses, gone":                 {pooled: rows(address(other)), first: rows(address(other)), second: rows(address(other)), out: true},
		"the other is down":               {pooled: rows(other), first: rows(ofScaleSet(1, "Down", bad)), second: rows(other)},
		"the other is up as all are down": {pooled: rows(other), first: rows(ofScaleSet(1, "Up", "Up_Probe_AllDownIsUp")), second: rows(other)},
		"down, and so is everything":      {pooled: rows(own, other), first: rows(ownDown, ofScaleSet(1, "Down", bad)), second: rows(ownDown, other)},
		"instance 10 is not instance 0":   {pooled: rows(ofScaleSet(10, "", ""), other), first: rows(other), second: rows(other), out: true},
		"a single machine":                {node: single, pooled: rows(bare(own), other), first: rows(bare(own), other), second: rows(bare(own), other)},
		"a single machine by its health":  {node: single, pooled: rows(config(bare(own)), other), first: rows(bare(ownDown), other), second: rows(bare(ownDown), other), out: true},
		"a single machine, gone":          {node: single, pooled: rows(other), first: rows(other), second: rows(other), out: true},
		"an interface that names nobody":  {node: single, pooled: rows(nowhere(own), other), first: rows(other), second: rows(other)},
		"an empty pool":                   {},
	} {
		t.Run(name, func(t *testing.T) {
			change := test.node
			if change == nil {
				change = func(*corev1.Node) {}
			}
			cloud := newRules(test.pooled, test.first, test.second)
			hook := newHook(t, cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg", "subscription": "S"})
			p, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(), Node: node("n1", change)})
			if err != nil || p.Out != test.out || p.Evidence == "" || test.out && *p.Settle != 15*time.Second {
				t.Errorf("%+v, %v; want out %t", p, err, test.out)
			}
		})
	}
}

// A thousand backends, load balancers over several pages, an operation that takes a moment, both families.
func TestLarge(t *testing.T) {
	var all []backend
	for i := range 1000 {
		all = append(all, ofScaleSet(i+1, "Up", "Up_Probe_Success"))
	}
	cloud := newCloud()
	cloud.page, cloud.pending = 2, 1
	cloud.pools[pool], cloud.pools[pool2] = all, append(all, ofScaleSet(0, "Down", "Down_Probe_HttpStatusCodeError"))
	for i := range 5 {
		cloud.rules = append(cloud.rules, rule{balancer + fmt.Sprint(i), "x", nil, nil})
	}
	cloud.rules = append(cloud.rules, rule{balancer, prefix + "-TCP-80", []string{pool}, all},
		rule{balancer, prefix + "-subnet-TCP-80-IPv6", []string{pool2}, append(all, ofScaleSet(0, "Down", "Down_Probe_HttpStatusCodeError"))})
	hook := newHook(t, cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg", "settle": "1s"})
	at := lbhooks.Target{Service: service(), Node: node("n1")}
	for range 2 {
		p, err := hook.Prove(t.Context(), at)
		if err != nil || !p.Out || *p.Settle != time.Second || !strings.Contains(p.Evidence, "in a backend pool, down; 1000 others up") {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	if lists := cloud.count("/loadBalancers"); lists != 3 {
		t.Errorf("%d pages of load balancers, want 3, once", lists)
	}
}

func TestErrors(t *testing.T) {
	const denied = "The client 'x' with object id 'y' does not have authorization to perform action 'Microsoft.Network/loadBalancers/read' over scope '/subscriptions/S/resourceGroups/MC_rg' or the scope is invalid."
	for name, test := range map[string]struct {
		fault     answer
		permanent bool
		says      string
	}{
		"denied":     {answer{status: 403, code: "AuthorizationFailed", message: denied}, true, "not allowed Microsoft.Network/loadBalancers/read on /subscriptions/S/resourceGroups/MC_rg"},
		"denied, no": {answer{status: 403, code: "AuthorizationFailed", message: "no"}, true, "not allowed Microsoft.Network/loadBalancers/read on /subscriptions/S/resourceGroups/MC_rg"},
		"expired":    {answer{status: 401, code: "ExpiredAuthenticationToken", message: "expired"}, true, "log in again"},
		"throttled":  {answer{status: 429, code: "TooManyRequests", message: "throttled"}, false, "429 TooManyRequests: throttled"},
		"tenant":     {answer{status: 401, code: "InvalidAuthenticationTokenTenant", message: "The access token is from the wrong issuer."}, true, "az login --tenant"},
		"down":       {answer{status: 503, code: "ServiceUnavailable", message: "down"}, false, "503 ServiceUnavailable"},
		"not there":  {answer{status: 404, code: "ResourceGroupNotFound", message: "Resource group 'MC_rg' could not be found."}, true, "Resource group 'MC_rg' could not be found: name the resource group of the load balancers by --hook-option azure.resource-group=NAME"},
		"no tenant":  {answer{status: 404, code: "SubscriptionNotFound", message: "The subscription 'S' could not be found."}, true, "--hook-option azure.subscription=ID"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newRules(nil, nil, nil)
			cloud.always(&test.fault)
			hook := newHook(t, cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg"})
			at := lbhooks.Target{Service: service(), Node: node("n1")}
			_, err := hook.Prove(t.Context(), at)
			if err == nil || errors.Is(err, lbhooks.ErrUnavailable) != test.permanent || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; want permanent %t, %q", err, test.permanent, test.says)
			}
			missing := hook.Check(t.Context(), []lbhooks.Target{at, at})
			if len(missing) != 1 || missing[0].Optional == test.permanent || !strings.Contains(missing[0].What, test.says) {
				t.Errorf("%+v", missing)
			}
		})
	}
}

// The SDK retries what may pass; a rule or group that is not there is looked for again.
func TestRetries(t *testing.T) {
	other := []backend{ofScaleSet(1, "Up", "Up_Probe_Success")}
	cloud := newRules(other, other, other)
	cloud.once = []answer{{status: 429, code: "TooManyRequests"}, {status: 503, code: "ServiceUnavailable"}}
	hook := newHook(t, cloud.serve(t, 3), map[string]string{"resource-group": "MC_rg"})
	at := lbhooks.Target{Service: service(), Node: node("n1")}
	if p, err := hook.Prove(t.Context(), at); err != nil || !p.Out {
		t.Fatalf("%+v, %v", p, err)
	}
	cloud.rules[2].name = prefix + "-TCP-8443"
	if _, err := hook.Prove(t.Context(), at); err == nil || errors.Is(err, lbhooks.ErrUnavailable) {
		t.Fatalf("%v, want an error that may pass", err)
	}
	if p, err := hook.Prove(t.Context(), at); err != nil || !p.Out {
		t.Errorf("%+v, %v; want the new rule found", p, err)
	}
	cloud.rules = cloud.rules[:1]
	_, err := newHook(t, cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg"}).Prove(t.Context(), at)
	if err == nil || errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "azure.resource-group") {
		t.Errorf("%v, want: no rule", err)
	}
}

// The health of a rule is told by its result alone, or by a state and a result; either may fail. The pause that Azure
// proposes is longer than an observation.
func TestOperations(t *testing.T) {
	other := []backend{ofScaleSet(1, "Up", "Up_Probe_Success")}
	for name, test := range map[string]struct {
		states bool
		broken *answer
		says   string
	}{
		"result":           {},
		"state and result": {states: true},
		"failed":           {broken: &answer{status: 500, code: "InternalServerError", message: "An error occurred."}, says: "operationResults/read: 500 InternalServerError: An error occurred"},
		"failed state":     {states: true, broken: &answer{code: "RetryableError", message: "A retryable error occurred."}, says: "the operation failed: RetryableError: A retryable error occurred"},
		"denied":           {broken: &answer{status: 403, code: "AuthorizationFailed", message: "no"}, says: "not allowed Microsoft.Network/locations/operationResults/read on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cloud := newRules(other, other, other)
			cloud.pending, cloud.states, cloud.broken = 1, test.states, test.broken
			hook := newHook(t, cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg"})
			p, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(), Node: node("n1")})
			if test.says == "" {
				if err != nil || !p.Out {
					t.Errorf("%+v, %v", p, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

// A pause that Azure asks for is kept, without further calls.
func TestThrottled(t *testing.T) {
	cloud := newRules(nil, nil, nil)
	cloud.once = []answer{{status: 429, code: "TooManyRequests", message: "throttled", pause: 17}}
	hook := newHook(t, cloud.serve(t, 3), map[string]string{"resource-group": "MC_rg"})
	at := lbhooks.Target{Service: service(), Node: node("n1")}
	for _, says := range []string{"Azure asks to wait 17s", "Azure asks to wait 17s more"} {
		if _, err := hook.Prove(t.Context(), at); err == nil || errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if len(cloud.calls) != 1 {
		t.Errorf("%q, want one call", cloud.calls)
	}
}

// login is the error of a login that the service answered.
func login(status int, description string) error {
	body, _ := json.Marshal(map[string]string{"error_description": description})
	return &azidentity.AuthenticationFailedError{RawResponse: &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(body))}}
}

func TestNoCredentials(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cli, err := azidentity.NewAzureCLICredential(nil)
	if err != nil {
		t.Fatal(err)
	}
	at := lbhooks.Target{Service: service(), Node: node("n1")}
	sdk := newCloud().serve(t, 0)
	sdk.Credential = cli
	if _, err := newHook(t, sdk, nil).Prove(t.Context(), at); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "no credentials") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want: no credentials", err)
	}
	for name, test := range map[string]struct {
		err       error
		permanent bool
		says      string
	}{
		"refused": {login(401, "AADSTS7000215: Invalid client secret provided.\r\nTrace ID: x"), true, "AADSTS7000215: Invalid client secret provided."},
		"down":    {login(503, ""), false, "503 from the login service"},
	} {
		sdk.Credential = token{err: test.err}
		_, err := newHook(t, sdk, nil).Prove(t.Context(), at)
		if err == nil || errors.Is(err, lbhooks.ErrUnavailable) != test.permanent || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want permanent %t, %q", name, err, test.permanent, test.says)
		}
	}
	if _, err := newHook(t, sdk, nil).Prove(t.Context(), lbhooks.Target{Service: service(), Node: &corev1.Node{}}); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "providerID") {
		t.Errorf("%v, want: no machine", err)
	}
	if _, err := azure.New(nil, lbhooks.Options{}, sdk).Prove(t.Context(), at); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("offline: %v", err)
	}
}

// The published role grants what the hook calls, and no more.
func TestRole(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "iam", "azure.json"))
	if err != nil {
		t.Fatal(err)
	}
	var role struct{ Actions []string }
	if err := json.Unmarshal(raw, &role); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(azure.Actions(), role.Actions); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
