package aws_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// roundTrip answers a request without a socket, so that time can be simulated.
type roundTrip http.HandlerFunc

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	f(w, r)
	return w.Result(), r.Context().Err()
}

// onNode is a target of node n1 in a state.
func onNode(state string) *target { return &target{id: "i-n1", port: 30080, state: state} }

func other(state string) *target { return &target{id: "i-n2", port: 30080, state: state} }

// What counts as out, and for how long to wait after it. A group of UDP is one whose health check asks something else.
func TestProve(t *testing.T) {
	const long, short = 120 * time.Second, 10 * time.Second
	for name, test := range map[string]struct {
		protocol string // TCP when left out
		before   []*target
		targets  []*target
		options  map[string]string
		out      bool
		settle   time.Duration
		says     string
	}{
		"healthy":                       {targets: []*target{onNode("healthy"), other("healthy")}, says: "healthy, 1 others healthy"},
		"initial":                       {targets: []*target{onNode("initial"), other("healthy")}},
		"unavailable":                   {targets: []*target{onNode("unavailable"), other("healthy")}},
		"a state nobody knows":          {targets: []*target{onNode("new.state"), other("healthy")}},
		"absent":                        {targets: []*target{other("healthy")}, out: true, settle: long, says: "absent"},
		"unused":                        {targets: []*target{onNode("unused"), other("healthy")}, out: true, settle: long},
		"draining":                      {targets: []*target{onNode("draining"), other("healthy")}, out: true, settle: long},
		"draining is not absent":        {targets: []*target{onNode("draining"), other("healthy")}, options: map[string]string{"proof": "absent"}},
		"draining without settle":       {targets: []*target{onNode("draining"), other("healthy")}, options: map[string]string{"settle": "0s"}},
		"absent without settle":         {targets: []*target{other("healthy")}, options: map[string]string{"settle": "0s"}, out: true},
		"a settle of one's own":         {targets: []*target{onNode("draining"), other("healthy")}, options: map[string]string{"settle": "3m"}, out: true, settle: 3 * time.Minute},
		"application":                   {protocol: "HTTP", targets: []*target{onNode("draining"), other("healthy")}, out: true, settle: short},
		"unhealthy, another healthy":    {targets: []*target{onNode("unhealthy"), other("healthy")}, out: true, settle: long},
		"unhealthy.draining":            {targets: []*target{onNode("unhealthy.draining"), other("healthy")}, out: true, settle: long},
		"both unhealthy":                {targets: []*target{onNode("unhealthy"), other("unhealthy")}, says: "sends to all"},
		"absent, the other unhealthy":   {targets: []*target{other("unhealthy")}, says: "sends to all"},
		"absent, the other initial":     {targets: []*target{other("initial")}},
		"absent, the other draining":    {targets: []*target{other("draining")}},
		"draining, nobody else":         {targets: []*target{onNode("draining")}},
		"an empty group":                {},
		"udp: both unhealthy":           {protocol: "UDP", targets: []*target{onNode("unhealthy"), other("unhealthy")}},
		"udp: unhealthy, one healthy":   {protocol: "UDP", targets: []*target{onNode("unhealthy"), other("healthy")}, out: true, settle: long},
		"udp: absent":                   {protocol: "UDP", targets: []*target{other("unhealthy")}, out: true, settle: long},
		"udp: absent, checks do work":   {protocol: "TCP_UDP", before: []*target{onNode("healthy"), other("healthy")}, targets: []*target{other("unhealthy")}},
		"udp: absent, nobody else":      {protocol: "UDP"},
		"one port left, one not":        {targets: []*target{onNode("draining"), {id: "i-n1", port: 30081, state: "healthy"}, other("healthy")}, says: "healthy"},
		"by address":                    {targets: []*target{{id: "10.0.0.1", port: 30080, state: "healthy"}, other("healthy")}},
		"another's address is not ours": {targets: []*target{{id: "10.0.0.11", port: 30080, state: "healthy"}, other("healthy")}, out: true, settle: long},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			g := nlb("g", test.targets...)
			if test.protocol != "" {
				g.protocol = test.protocol
			}
			cloud.groups = []*tg{g}
			hook, _ := newHook(t, cloud.serve(t), test.options)
			at := lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")}
			if test.before != nil {
				g.targets = test.before
				if p, err := hook.Prove(t.Context(), at); err != nil || p.Out {
					t.Fatalf("%+v, %v", p, err)
				}
				g.targets = test.targets
			}
			p, err := hook.Prove(t.Context(), at)
			if err != nil || p.Out != test.out || p.Evidence == "" || !strings.Contains(p.Evidence, test.says) {
				t.Fatalf("%+v, %v; want out %t, %q", p, err, test.out, test.says)
			}
			if test.out && (p.Settle == nil || *p.Settle != test.settle) {
				t.Errorf("settle %v, want %s", p.Settle, test.settle)
			}
		})
	}
}

// A port of UDP does not hide behind one of TCP: each group has to let go of the node.
func TestUDPBesideTCP(t *testing.T) {
	for name, test := range map[string]struct {
		tcp, udp []*target
		out      bool
		says     string
	}{
		"udp still sends": {tcp: []*target{other("healthy")}, udp: []*target{onNode("healthy"), other("healthy")}, says: "udp: healthy"},
		"tcp still sends": {tcp: []*target{onNode("healthy"), other("healthy")}, udp: []*target{other("unhealthy")}, says: "tcp: healthy"},
		"both let go":     {tcp: []*target{other("healthy")}, udp: []*target{other("unhealthy")}, out: true, says: "tcp: absent, 1 others healthy; udp: absent"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			tcp, udp := nlb("tcp", test.tcp...), nlb("udp", test.udp...)
			udp.protocol = "UDP"
			cloud.groups = []*tg{tcp, udp}
			hook, _ := newHook(t, cloud.serve(t), nil)
			p, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")})
			if err != nil || p.Out != test.out || !strings.Contains(p.Evidence, test.says) {
				t.Errorf("%+v, %v; want out %t, %q", p, err, test.out, test.says)
			}
		})
	}
}

func TestProveClassic(t *testing.T) {
	const going = "Instance deregistration currently in progress."
	for name, test := range map[string]struct {
		own, other []instance
		options    map[string]string
		out        bool
	}{
		"in service":                  {own: []instance{{"i-n1", "InService", "N/A"}}, other: []instance{{"i-n2", "InService", "N/A"}}},
		"out of service":              {own: []instance{{"i-n1", "OutOfService", "N/A"}}, other: []instance{{"i-n2", "InService", "N/A"}}, out: true},
		"absent":                      {other: []instance{{"i-n2", "InService", "N/A"}}, out: true},
		"unknown":                     {own: []instance{{"i-n1", "Unknown", "N/A"}}, other: []instance{{"i-n2", "InService", "N/A"}}},
		"on its way":                  {own: []instance{{"i-n1", "InService", going}}, other: []instance{{"i-n2", "InService", "N/A"}}, out: true},
		"on its way is not absent":    {own: []instance{{"i-n1", "InService", going}}, other: []instance{{"i-n2", "InService", "N/A"}}, options: map[string]string{"proof": "absent"}},
		"absent, others out":          {other: []instance{{"i-n2", "OutOfService", "N/A"}}},
		"absent, others on their way": {other: []instance{{"i-n2", "InService", going}}},
		"both out of service":         {own: []instance{{"i-n1", "OutOfService", "N/A"}}, other: []instance{{"i-n2", "OutOfService", "N/A"}}},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			cloud.classic["a1b2c3"] = append(test.other, test.own...)
			hook, _ := newHook(t, cloud.serve(t), test.options)
			for _, host := range []string{clbHost, "internal-" + clbHost} {
				p, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(hosted(host)), Node: node("n1")})
				if err != nil || p.Out != test.out || p.Evidence == "" {
					t.Fatalf("%s: %+v, %v; want out %t", host, p, err, test.out)
				}
				if test.out && *p.Settle != 10*time.Second {
					t.Errorf("settle %s", p.Settle)
				}
			}
		})
	}
}

// By polls of ten seconds a target is healthy, then drains for two minutes, then is gone. With proof=absent the pods go no
// sooner than the settle time after that; a settle time of zero takes the first poll at which it is gone.
func TestDraining(t *testing.T) {
	for name, test := range map[string]struct {
		options map[string]string
		proven  time.Duration
		evict   time.Duration
	}{
		"draining, then settle": {nil, 10 * time.Second, 130 * time.Second},
		"absent, then settle":   {map[string]string{"proof": "absent"}, 130 * time.Second, 250 * time.Second},
		"settle of zero":        {map[string]string{"settle": "0s"}, 130 * time.Second, 130 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_CA_BUNDLE", "") // the SDK wants to add it to a client of its own making
			synctest.Test(t, func(t *testing.T) {
				cloud := newCloud()
				cloud.groups = []*tg{nlb("g", onNode("healthy"), other("healthy"))}
				began := time.Now()
				time.AfterFunc(5*time.Second, func() {
					cloud.mu.Lock()
					defer cloud.mu.Unlock()
					own := cloud.groups[0].targets[0]
					own.state, own.gone = "draining", time.Now().Add(120*time.Second)
				})
				load := append(options("http://aws.invalid"), config.WithHTTPClient(&http.Client{Transport: roundTrip(cloud.ServeHTTP)}))
				hook, _ := newHook(t, load, test.options)
				at := lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")}
				p, err := hook.Prove(t.Context(), at)
				for ; err == nil && !p.Out; p, err = hook.Prove(t.Context(), at) {
					time.Sleep(10 * time.Second)
				}
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != test.proven || took+*p.Settle != test.evict {
					t.Errorf("proven after %s, evict after %s; want %s, %s", took, took+*p.Settle, test.proven, test.evict)
				}
			})
		})
	}
}

// A target that was draining and is healthy again was registered by somebody: it is in rotation.
func TestDrainingAgain(t *testing.T) {
	cloud := newCloud()
	cloud.groups = []*tg{nlb("g", onNode("draining"), other("healthy"))}
	hook, _ := newHook(t, cloud.serve(t), nil)
	at := lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")}
	for _, step := range []struct {
		state string
		out   bool
	}{{"draining", true}, {"healthy", false}, {"draining", true}} {
		cloud.groups[0].targets[0].state = step.state
		if p, err := hook.Prove(t.Context(), at); err != nil || p.Out != step.out {
			t.Errorf("%s: %+v, %v; want out %t", step.state, p, err, step.out)
		}
	}
}

func TestThousandTargets(t *testing.T) {
	cloud := newCloud()
	g := nlb("g")
	for i := range 1000 {
		g.targets = append(g.targets, healthyTarget(fmt.Sprintf("i-%05d", i), 30080))
	}
	g.targets = append(g.targets, onNode("draining"))
	cloud.groups = []*tg{g}
	hook, _ := newHook(t, cloud.serve(t), nil)
	p, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")})
	if err != nil || !p.Out || !strings.Contains(p.Evidence, "1000 others") || cloud.count("DescribeTargetHealth") != 1 {
		t.Errorf("%+v, %v, %d calls", p, err, cloud.count("DescribeTargetHealth"))
	}
}

func TestOffline(t *testing.T) {
	hook := newOffline(t)
	at := lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")}
	if _, err := hook.Prove(t.Context(), at); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	if err := hook.Restore(t.Context(), at); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := hook.Withdraw(ended, at); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}
