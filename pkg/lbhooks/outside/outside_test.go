package outside

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// announcer is a hook that says at each observation who has the address, and a network in which some answer.
type announcer struct {
	owners []string // by observation, the last for ever
	silent []bool   // by observation, the last for ever: the address does not answer
	err    error

	polls, dials int
}

func at[T any](all []T, poll int) T { return all[min(poll, len(all))-1] }

func (a *announcer) Describe() lbhooks.Description {
	return lbhooks.Description{Name: "announcer", Witness: "owner", Settle: time.Second}
}

func (a *announcer) Match(*corev1.Service, lbhooks.Objects) (lbhooks.Rotation, bool) {
	return lbhooks.Rotation{}, false
}
func (a *announcer) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }
func (a *announcer) Restore(ctx context.Context, _ lbhooks.Target) error  { return ctx.Err() }

func (a *announcer) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	a.polls++
	owner := at(a.owners, a.polls)
	if a.err != nil || ctx.Err() != nil {
		return lbhooks.Proof{}, errors.Join(a.err, ctx.Err())
	}
	p := lbhooks.Proof{Out: owner != t.Node.Name, Evidence: owner + " has it"}
	if p.Out {
		p.By = owner
	}
	return p, nil
}

func (a *announcer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	a.dials++
	if at(a.silent, a.polls) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ours, theirs := net.Pipe()
	_ = theirs.Close()
	return ours, nil
}

// watch wraps the announcer as an operator asks for it.
func (a *announcer) watch(t *testing.T, times string) *watched {
	t.Helper()
	options, err := lbhooks.NewOptions(Options(), map[string]string{"probe": times})
	if err != nil {
		t.Fatal(err)
	}
	w, ok := Wrap(a, options).(*watched)
	if !ok {
		t.Fatalf("probe=%s does not look", times)
	}
	w.dialer = a
	return w
}

func target() lbhooks.Target {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "gw"}}
	svc.Spec.Ports = []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}, {Port: 443, Protocol: corev1.ProtocolTCP}}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
	return lbhooks.Target{Service: svc, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
}

// The address moved at the second observation, and the neighbours' caches did not: what is sent from here is lost until the
// third. Three answers in a row are asked for, so the node is out at the fifth observation. C54.
func TestCachesLag(t *testing.T) {
	const ok, lost = false, true
	for name, test := range map[string]struct {
		owners []string
		silent []bool
		polls  int // until the proof; 0: none
	}{
		"caches lag":                    {[]string{"n1", "n2"}, []bool{lost, lost, ok}, 5},
		"they do not":                   {[]string{"n1", "n2"}, []bool{ok}, 4},
		"lost once more":                {[]string{"n1", "n2"}, []bool{lost, ok, ok, lost, ok}, 7},
		"lost for ever":                 {[]string{"n1", "n2"}, []bool{lost}, 0},
		"answers, and n1 has it":        {[]string{"n1"}, []bool{ok}, 0},
		"it is back for an observation": {[]string{"n2", "n2", "n1", "n2"}, []bool{ok}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &announcer{owners: test.owners, silent: test.silent}
				proof, err := lbhooks.Wait(t.Context(), clock.RealClock{}, a.watch(t, "3"), target(), lbhooks.WaitOptions{Timeout: 30 * time.Second})
				if test.polls == 0 {
					if !errors.Is(err, lbhooks.ErrNotProven) {
						t.Errorf("%+v, %v; want ErrNotProven", proof, err)
					}
					return
				}
				if err != nil || a.polls != test.polls || proof.By != "n2" || !strings.Contains(proof.Evidence, "192.0.2.10:443 answers from here") {
					t.Errorf("%d observations, %+v, %v; want %d", a.polls, proof, err, test.polls)
				}
			})
		})
	}
}

// A look adds to what the hook saw, and is made only when the hook says that the node is out.
func TestLook(t *testing.T) {
	failure := errors.New("no answer of the API")
	for name, test := range map[string]struct {
		announcer announcer
		change    func(*corev1.Service)
		out       bool
		says      string
		dials     int
	}{
		"out, and it answers":   {announcer{owners: []string{"n2"}, silent: []bool{false}}, nil, true, "n2 has it; 192.0.2.10:443 answers from here", 1},
		"out, and it is silent": {announcer{owners: []string{"n2"}, silent: []bool{true}}, nil, false, "but 192.0.2.10:443 does not answer from here: silent for 2s", 1},
		"in":                    {announcer{owners: []string{"n1"}, silent: []bool{false}}, nil, false, "n1 has it", 0},
		"the hook fails":        {announcer{owners: []string{"n2"}, silent: []bool{false}, err: failure}, nil, false, "", 0},
		"two addresses": {announcer{owners: []string{"n2"}, silent: []bool{false}}, func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "2001:db8::1"})
		}, true, "192.0.2.10:443, [2001:db8::1]:443 answers", 2},
		"UDP alone": {announcer{owners: []string{"n2"}, silent: []bool{true}}, func(svc *corev1.Service) {
			svc.Spec.Ports = svc.Spec.Ports[:1]
		}, true, "no TCP port to connect to", 0},
		"no address": {announcer{owners: []string{"n2"}, silent: []bool{true}}, func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress = nil
		}, true, "no address to connect to", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, at := &test.announcer, target()
				if test.change != nil {
					test.change(at.Service)
				}
				p, err := a.watch(t, "1").Prove(t.Context(), at)
				if !errors.Is(err, a.err) || p.Out != test.out || !strings.Contains(p.Evidence, test.says) || a.dials != test.dials {
					t.Errorf("%+v, %v, %d connections; want out %t, %q, %d", p, err, a.dials, test.out, test.says, test.dials)
				}
			})
		})
	}
}

// patient connects however long it takes.
type patient struct{ net.Dialer }

func (p *patient) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return p.Dialer.DialContext(context.WithoutCancel(ctx), network, address)
}

// A real connection: a port that listens answers, one that does not refuses.
func TestRealConnections(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := target()
	at.Service.Spec.Ports = []corev1.ServicePort{{Port: int32(l.Addr().(*net.TCPAddr).Port)}}
	at.Service.Status.LoadBalancer.Ingress[0].IP = "127.0.0.1"
	w := (&announcer{owners: []string{"n2"}}).watch(t, "1")
	w.dialer = &patient{}
	if p, err := w.Prove(t.Context(), at); err != nil || !p.Out {
		t.Errorf("%+v, %v", p, err)
	}
	_ = l.Close()
	if p, err := w.Prove(t.Context(), at); err != nil || p.Out || !strings.Contains(p.Evidence, "connection refused") {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestNotAskedFor(t *testing.T) {
	a := &announcer{}
	for _, values := range []map[string]string{nil, {"probe": "0"}} {
		options, err := lbhooks.NewOptions(Options(), values)
		if err != nil || Wrap(a, options) != lbhooks.Hook(a) {
			t.Errorf("%v: wrapped, %v", values, err)
		}
	}
	if _, err := lbhooks.NewOptions(Options(), map[string]string{"probe": "often"}); err == nil {
		t.Error("probe=often is taken")
	}
}

// balancer is the announcer for the contract: what it says, and whether the address answers, is as told.
type balancer struct {
	*announcer

	hook *watched
}

func (b *balancer) Hook() lbhooks.Hook     { return b.hook }
func (b *balancer) Target() lbhooks.Target { return target() }

// Show: lying is an owner that moved while the address does not answer.
func (b *balancer) Show(_ context.Context, s hooktest.State) error {
	b.owners, b.silent = []string{map[bool]string{true: "n1", false: "n2"}[s == hooktest.In]}, []bool{s == hooktest.Lying}
	return nil
}

func (b *balancer) Fail(f hooktest.Fault) {
	b.err = map[hooktest.Fault]error{
		hooktest.Flaky: errors.New("passes"), hooktest.Forbidden: lbhooks.Unavailable("announcer", "may not be read", nil),
	}[f]
}

func (b *balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, By: "n2", States: []hooktest.State{hooktest.Lying}, Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden},
	}
}

// DialContext is impatient: a silent address costs the suite little time.
func (b *balancer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	return b.announcer.DialContext(ctx, network, address)
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer {
		b := &balancer{announcer: &announcer{}}
		b.hook = b.watch(t, "1")
		b.hook.dialer = b
		if err := b.Show(t.Context(), hooktest.In); err != nil {
			t.Fatal(err)
		}
		return b
	})
}
