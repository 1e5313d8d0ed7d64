package healthcheck_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/healthcheck"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// healthCheckNodePort is the port of the Service of the tests.
const healthCheckNodePort = 32000

// proxies are the health check ports of nodes n1, n2 and n3, on a network in memory.
type proxies struct {
	network hooktest.Network

	mu      sync.Mutex
	answers map[string][]string // by node: one answer after the other, the last for ever
	doors   map[string]net.Listener
}

// Answers of a port.
const (
	passing     = `200 {"service":{"namespace":"w","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":true}`
	cilium      = `200 {"service":{"namespace":"w","name":"lb"},"localEndpoints":2}`
	failing     = `503 {"service":{"namespace":"w","name":"lb"},"localEndpoints":0,"serviceProxyHealthy":true}`
	otherName   = `200 {"service":{"namespace":"w","name":"other"},"localEndpoints":1}`
	otherSpace  = `503 {"service":{"namespace":"x","name":"lb"},"localEndpoints":0}`
	empty       = `200 `
	html        = `200 <html>`
	zero        = `200 {"service":{"namespace":"w","name":"lb"},"localEndpoints":0}`
	proxyIsSick = `200 {"service":{"namespace":"w","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":false}`
	redirect    = `302 `
	hang        = `hang`
	refuse      = `refuse`
	unreachable = `unreachable`
)

var addresses = map[string]string{"n1": "127.0.0.1", "n2": "127.0.0.2", "n3": "127.0.0.3"}

// newProxies is called in a bubble, in which silence costs no time.
func newProxies(t *testing.T) *proxies {
	t.Helper()
	p := &proxies{answers: map[string][]string{}, doors: map[string]net.Listener{}}
	for node, address := range addresses {
		server := &http.Server{Handler: p.handler(node), ReadHeaderTimeout: time.Second}
		p.doors[node] = p.network.Listen(net.JoinHostPort(address, strconv.Itoa(healthCheckNodePort)))
		go server.Serve(p.doors[node])
		t.Cleanup(func() { server.Close() })
		p.say(node, passing)
	}
	return p
}

// bubble runs a test in a bubble.
func bubble(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// hook is the hook on this network.
func (p *proxies) hook() *healthcheck.Hook {
	return healthcheck.New(&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.network.DialContext}})
}

func (p *proxies) say(node string, answers ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[node] = answers
}

func (p *proxies) next(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.answers[node]
	if len(all) > 1 {
		p.answers[node] = all[1:]
	}
	return all[0]
}

func (p *proxies) handler(node string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := p.next(node)
		if answer == hang {
			<-r.Context().Done()
			return
		}
		code, body, _ := strings.Cut(answer, " ")
		w.Header().Set("Location", "http://192.0.2.1/")
		w.WriteHeader(map[string]int{"200": 200, "302": 302, "503": 503}[code])
		fmt.Fprint(w, body)
	}
}

// target is the Service w/lb on a node.
func target(node string) lbhooks.Target {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "w", Name: "lb",
		Annotations: map[string]string{lbhooks.AnnotationHealthCheck: "interval=1s,unhealthy=3,timeout=1s"},
	}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = healthCheckNodePort
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: node}, {Type: corev1.NodeInternalIP, Address: addresses[node]}}
	return lbhooks.Target{Service: svc, Node: n}
}

// Sources: kube-proxy pkg/proxy/healthcheck/service_health.go; the field reports about ports that answered wrongly, in both
// directions: 200 although nothing is local, and no answer although something is.
func TestBaseline(t *testing.T) {
	for name, test := range map[string]struct {
		says string
		want healthcheck.Answer
	}{
		"passing":                {passing, healthcheck.Passing},
		"cilium's shorter body":  {cilium, healthcheck.Passing},
		"failing":                {failing, healthcheck.Failing},
		"another service":        {otherName, healthcheck.Strange},
		"another namespace, 503": {otherSpace, healthcheck.Strange},
		"an empty 200":           {empty, healthcheck.Strange},
		"a web page":             {html, healthcheck.Strange},
		"200 with no endpoint":   {zero, healthcheck.Strange},
		"a proxy that is sick":   {proxyIsSick, healthcheck.Strange},
		"a redirect":             {redirect, healthcheck.Strange},
		"silence":                {hang, healthcheck.Silent},
		"silence on the way":     {unreachable, healthcheck.Silent},
		"refused":                {refuse, healthcheck.Refused},
	} {
		bubble(t, name, func(t *testing.T) {
			p := newProxies(t)
			p.say("n1", test.says)
			switch test.says {
			case refuse:
				p.doors["n1"].Close()
			case unreachable: // nothing goes on connecting: else the bubble does not end
				p.network.Silence(p.doors["n1"].Addr().String())
			}
			o, err := p.hook().Baseline(t.Context(), target("n1"))
			if err != nil || o.Answer != test.want || !strings.Contains(o.Detail, "127.0.0.1:") {
				t.Errorf("%+v, %v; want %s", o, err, test.want)
			}
		})
	}
}

// What follows a baseline, as a wait at the balancer's pace sees it: `threshold` in a row, and the settle time on top.
func TestWaitAfterBaseline(t *testing.T) {
	for name, test := range map[string]struct {
		baseline string
		then     []string
		out      bool
	}{
		"503 in a row":                        {passing, []string{passing, failing}, true},
		"refused in a row after a pass":       {passing, []string{refuse}, true},
		"200 for ever, whatever the API says": {passing, []string{passing}, false},
		"another name for ever":               {passing, []string{otherName}, false},
		"an empty 200 for ever":               {passing, []string{empty}, false},
		"silence is never a 503":              {passing, []string{hang}, false},
		"flapping, never three in a row":      {passing, []string{failing, failing, passing, failing, failing, passing, failing, failing, passing, failing, failing, passing, failing, passing}, false},
		"503 from the start":                  {failing, []string{failing}, false},
		"refused from the start":              {refuse, []string{refuse}, false},
		"silent from the start":               {hang, []string{hang}, false},
	} {
		bubble(t, name, func(t *testing.T) {
			p := newProxies(t)
			hook, at := p.hook(), target("n1")
			p.say("n1", test.baseline)
			if test.baseline == refuse {
				p.doors["n1"].Close()
			}
			if _, err := hook.Baseline(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			p.say("n1", test.then...)
			if test.then[0] == refuse {
				p.doors["n1"].Close()
			}
			_, stable := hook.Pace(at)
			proof, err := lbhooks.Wait(t.Context(), clock.RealClock{}, hook, at, lbhooks.WaitOptions{
				Timeout: 500 * time.Millisecond, Poll: 10 * time.Millisecond, MaxPoll: 20 * time.Millisecond, Stable: stable,
			})
			if test.out {
				if err != nil || !proof.Out || proof.Settle == nil || *proof.Settle != 4*time.Second {
					t.Errorf("%+v, %v; want out, with 3 x 1s + 1s to settle", proof, err)
				}
				return
			}
			if !errors.Is(err, lbhooks.ErrNotProven) {
				t.Errorf("%+v, %v; want ErrNotProven", proof, err)
			}
		})
	}
}

// A Service without node ports has the health check port all the same, and that is the one that is probed. Source:
// Kubernetes pkg/registry/core/service/storage/alloc.go, where the two have nothing to do with each other.
func TestNoNodePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxies(t)
		at, no := target("n1"), false
		at.Service.Spec.AllocateLoadBalancerNodePorts = &no
		at.Service.Spec.Ports = []corev1.ServicePort{{Port: 443}}
		o, err := p.hook().Baseline(t.Context(), at)
		if err != nil || o.Answer != healthcheck.Passing || !strings.Contains(o.Detail, fmt.Sprintf("127.0.0.1:%d ", healthCheckNodePort)) {
			t.Errorf("%+v, %v; want a pass on port %d", o, err, healthCheckNodePort)
		}
	})
}

func TestPace(t *testing.T) {
	hook := healthcheck.New(nil)
	svc := &corev1.Service{}
	svc.Spec.HealthCheckNodePort = 1
	for providerID, want := range map[string]string{"gce://p/z/i": "8s x 3", "azure:///x": "5s x 2", "": "30s x 3"} {
		n := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: providerID}}
		poll, stable := hook.Pace(lbhooks.Target{Service: svc, Node: n})
		if got := fmt.Sprintf("%s x %d", poll, stable); got != want {
			t.Errorf("%q: %s, want %s", providerID, got, want)
		}
	}
	svc.Annotations = map[string]string{lbhooks.AnnotationHealthCheck: "nonsense"}
	if poll, stable := hook.Pace(lbhooks.Target{Service: svc, Node: &corev1.Node{}}); poll != 30*time.Second || stable != 3 {
		t.Errorf("bad annotation: %s x %d", poll, stable)
	}
}

// The other nodes: only those that pass count, a sick proxy does not.
func TestHealthy(t *testing.T) {
	for name, test := range map[string]struct {
		n2, n3 string
		want   []string
	}{
		"both":        {passing, cilium, []string{"n2", "n3"}},
		"a sick one":  {proxyIsSick, passing, []string{"n3"}},
		"one silent":  {hang, passing, []string{"n3"}},
		"one failing": {failing, passing, []string{"n3"}},
		"none":        {failing, empty, nil},
	} {
		bubble(t, name, func(t *testing.T) {
			p := newProxies(t)
			p.say("n2", test.n2)
			p.say("n3", test.n3)
			got, err := p.hook().Healthy(t.Context(), target("n1").Service, []*corev1.Node{target("n3").Node, target("n2").Node})
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v, -want +got\n%s", err, diff)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := healthcheck.New(nil).Healthy(ended, target("n1").Service, []*corev1.Node{target("n2").Node}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v; want the context's error", got, err)
	}
}

func TestAssert(t *testing.T) {
	objects := func(svc *corev1.Service, label string) *hooktest.Objects {
		o := &hooktest.Objects{}
		for name := range addresses {
			n := target(name).Node
			if name == "n1" && label != "" {
				n.Labels = map[string]string{lbhooks.ExcludeLabel: label}
			}
			o.AllNodes = append(o.AllNodes, n)
		}
		o.AllSlices = append(o.AllSlices, hooktest.Slice(svc, discoveryv1.EndpointConditions{}, "n1", "n2"))
		return o
	}
	for name, test := range map[string]struct {
		change func(*corev1.Service)
		label  string
		n1, n3 lbhooks.Seat
		broken string
	}{
		"usual":                   {n1: lbhooks.Seat{In: lbhooks.Yes, Eligible: true}, n3: lbhooks.Seat{In: lbhooks.No, Eligible: true}},
		"labelled: still probed":  {label: "true", n1: lbhooks.Seat{In: lbhooks.Yes}, n3: lbhooks.Seat{In: lbhooks.No, Eligible: true}},
		"no health check port":    {change: func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }, broken: "no healthCheckNodePort"},
		"annotation is no timing": {change: func(s *corev1.Service) { s.Annotations[lbhooks.AnnotationHealthCheck] = "10s" }, broken: "is not key=value"},
		"pods are the targets": {change: func(s *corev1.Service) {
			s.Annotations["service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"] = "ip"
		}, broken: "targets pods"},
	} {
		t.Run(name, func(t *testing.T) {
			svc := target("n1").Service
			if test.change != nil {
				test.change(svc)
			}
			o := objects(svc, test.label)
			hook := healthcheck.New(nil)
			if _, ok := hook.Match(svc, o); ok {
				t.Error("it matched by itself")
			}
			r := hook.Assert(svc, o)
			if test.broken != "" {
				if !strings.Contains(r.Broken, test.broken) {
					t.Errorf("broken %q, want %q", r.Broken, test.broken)
				}
				return
			}
			n1, n3 := r.Seat("n1"), r.Seat("n3")
			n1.Why, n3.Why = "", ""
			if n1 != test.n1 || n3 != test.n3 {
				t.Errorf("n1 %+v, n3 %+v", n1, n3)
			}
			if r.Removal != lbhooks.RemovalHealthCheck || r.Provable || !r.Follows || r.HealthCheck == nil || r.HealthCheck.Interval != time.Second {
				t.Errorf("%+v", r)
			}
		})
	}
}

// balancer is a balancer that probes the port: what it does is what the port says.
type balancer struct {
	*proxies
	hook *healthcheck.Hook
}

func (b *balancer) Hook() lbhooks.Hook     { return b.hook }
func (b *balancer) Target() lbhooks.Target { return target("n1") }

func (b *balancer) Show(_ context.Context, s hooktest.State) error {
	b.say("n1", map[hooktest.State]string{
		hooktest.In: passing, hooktest.Out: failing, hooktest.Moving: empty, hooktest.Lying: otherSpace, hooktest.Nobody: hang,
	}[s])
	return nil
}

func (b *balancer) Fail(f hooktest.Fault) {
	if f == hooktest.Slow {
		b.say("n1", hang)
	}
}

func (b *balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true,
		States:  []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults:  []hooktest.Fault{hooktest.Slow},
	}
}

func TestContract(t *testing.T) {
	hooktest.RunInBubble(t, func(t *testing.T) hooktest.Balancer {
		p := newProxies(t)
		b := &balancer{proxies: p, hook: p.hook()}
		if o, err := b.hook.Baseline(t.Context(), b.Target()); err != nil || o.Answer != healthcheck.Passing {
			t.Fatalf("%+v, %v", o, err)
		}
		return b
	})
}
