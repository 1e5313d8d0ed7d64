package probe

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

// places are the nodes of the tests.
var places = map[string]string{"n1": "192.0.2.1", "n2": "192.0.2.2", "n3": "192.0.2.3"}

// nodePort is the port of the Service of the tests: open on n1, silent on n2, closed on n3.
const nodePort = 30080

// scene is a cluster of these nodes with a Service of one node port.
type scene struct {
	port      int
	udp       int      // a UDP node port, 0 for none
	ipv6      bool     // the Service has IPv6 too, the nodes have not
	endpoints []string // nodes with a ready endpoint
	gone      bool     // there is no Service
}

func (s scene) index(t *testing.T) *cluster.Index {
	t.Helper()
	var b strings.Builder
	for _, n := range []string{"n1", "n2", "n3"} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: %s}\nstatus:\n  conditions: [{type: Ready, status: 'True'}]\n  addresses: [{type: InternalIP, address: %s}]\n", n, places[n])
	}
	if !s.gone {
		ports := fmt.Sprintf("{name: http, port: 80, protocol: TCP, nodePort: %d}", s.port)
		target := "{name: http, port: 8080, protocol: TCP}"
		if s.udp != 0 {
			ports += fmt.Sprintf(", {name: dns, port: 53, protocol: UDP, nodePort: %d}", s.udp)
			target += ", {name: dns, port: 53, protocol: UDP}"
		}
		ips := "10.96.0.9"
		if s.ipv6 {
			ips += ", 'fd00::9'"
		}
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: lb, namespace: w}\nspec: {type: NodePort, externalTrafficPolicy: Local, clusterIP: 10.96.0.9, clusterIPs: [%s], ports: [%s]}\n", ips, ports)
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: lb-a, namespace: w, labels: {kubernetes.io/service-name: lb}}\naddressType: IPv4\nports: [%s]\nendpoints:\n", target)
		for i, n := range s.endpoints {
			fmt.Fprintf(&b, "- {addresses: [10.244.0.%d], nodeName: %s, conditions: {ready: true}}\n", i+1, n)
		}
	}
	snap, err := cluster.Read(t.Context(), []string{"-"}, strings.NewReader(b.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	return snap.Index(hookset.New(hookset.Deps{}), nil)
}

func TestSurvey(t *testing.T) {
	type rows map[string]string // node to "port: rules, seen times (not counted: why)"
	for name, test := range map[string]struct {
		begin     scene
		reloads   []scene // what the cluster is read as afterwards, the last for ever
		place     Place
		total     time.Duration
		want      rows
		wantLooks int // how often the cluster was read again
	}{
		"as the rules say": {
			begin: scene{endpoints: []string{"n1"}},
			want:  rows{"n1": "OK, OK 1", "n2": "Blackhole, Blackhole 1", "n3": "Blackhole, Refused 2"}, wantLooks: 2,
		},
		"disagrees twice": {
			begin: scene{endpoints: []string{"n1", "n2"}},
			want:  rows{"n1": "OK, OK 1", "n2": "OK, Blackhole 2", "n3": "Blackhole, Refused 2"}, wantLooks: 2,
		},
		"the endpoint left meanwhile: no contradiction": {
			begin:   scene{endpoints: []string{"n1", "n2"}},
			reloads: []scene{{endpoints: []string{"n1"}}},
			want:    rows{"n1": "OK, OK 1", "n2": "Blackhole, Blackhole 2", "n3": "Blackhole, Refused 2"}, wantLooks: 2,
		},
		"it changed between the first and the second look: a third": {
			begin:   scene{endpoints: []string{"n1"}},
			reloads: []scene{{endpoints: []string{"n1", "n3"}}},
			want:    rows{"n1": "OK, OK 1", "n2": "Blackhole, Blackhole 1", "n3": "OK, Refused 3"}, wantLooks: 4,
		},
		"it changes at every look": {
			begin:   scene{endpoints: []string{"n1"}},
			reloads: []scene{{endpoints: []string{"n1", "n3"}}, {endpoints: []string{"n1"}}, {endpoints: []string{"n1", "n3"}}, {endpoints: []string{"n1"}}, {endpoints: []string{"n1", "n3"}}, {endpoints: []string{"n1"}}},
			want:    rows{"n1": "OK, OK 1", "n2": "Blackhole, Blackhole 1", "n3": "Blackhole, Refused 4 (changed while it was probed)"}, wantLooks: 6,
		},
		"the Service is deleted meanwhile": {
			begin:   scene{endpoints: []string{"n1"}},
			reloads: []scene{{gone: true}},
			want:    rows{"n1": "OK, OK 1", "n2": "Blackhole, Blackhole 1", "n3": "Blackhole, Refused 2 (changed while it was probed)"}, wantLooks: 2,
		},
		"from a node": {
			begin: scene{endpoints: []string{"n1"}}, place: Place{Node: "n3"},
			want: rows{"n1": "OK, OK 1", "n2": "Blackhole, Blackhole 1", "n3": "Blackhole,  0 (we run on this node)"},
		},
		"from a pod on another node": {
			begin: scene{}, place: Place{Node: "n3", Pod: true},
			want: rows{
				"n1": "Refused, OK 1 (we run in a pod: a proxy that knows pods by the cluster's range treats those of other nodes as its own)",
				"n2": "Refused, Blackhole 1 (we run in a pod: a proxy that knows pods by the cluster's range treats those of other nodes as its own)",
				"n3": "Refused,  0 (we run in a pod on this node)",
			},
		},
		"the time is up before the second look": {
			begin: scene{endpoints: []string{"n1", "n2"}}, total: 700 * time.Millisecond,
			want: rows{
				"n1": "OK, OK 1", "n2": "OK, Blackhole 1 (seen otherwise once only: the time for all probes was up)",
				"n3": "Blackhole, Refused 1 (seen otherwise once only: the time for all probes was up)",
			}, wantLooks: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.begin.port = nodePort
				o := quick
				wait := time.Millisecond
				if test.total != 0 {
					o.Total, wait = test.total, test.total
				}
				looked := 0
				s := Survey{
					Prober: bounded(t, o), Place: test.place, Wait: wait,
					Address: func(node string, family corev1.IPFamily) (netip.Addr, bool) {
						return netip.MustParseAddr(places[node]), family == corev1.IPv4Protocol
					},
					Reload: func(context.Context) (guard.Index, error) {
						now := test.begin
						if len(test.reloads) > 0 {
							now = test.reloads[min(looked, len(test.reloads)-1)]
							now.port = test.begin.port
						}
						looked++
						return now.index(t), nil
					},
				}
				ix := test.begin.index(t)
				report := guard.Audit(ix, guard.AuditFilter{})
				probes := s.Plan(ix, &report)
				if err := s.Run(t.Context(), probes); err != nil {
					t.Fatal(err)
				}
				got := rows{}
				for _, p := range probes {
					text := fmt.Sprintf("%s, %s %d", p.Predicted, p.Observed, p.Times)
					if p.NotCounted != "" {
						text += " (" + p.NotCounted + ")"
					}
					got[p.Node] = text
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if looked != test.wantLooks {
					t.Errorf("the cluster was read %d times more, want %d", looked, test.wantLooks)
				}
			})
		})
	}
}

// TestSilenceIsNotLookedAtTwice: where no node answers, nothing is probed again.
func TestSilenceIsNotLookedAtTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc := scene{port: nodePort, endpoints: []string{"n1", "n2", "n3"}}
		s := Survey{
			Prober: bounded(t, quick), Wait: time.Millisecond,
			Address: func(string, corev1.IPFamily) (netip.Addr, bool) { return netip.MustParseAddr(places["n2"]), true },
			Reload: func(context.Context) (guard.Index, error) {
				t.Error("the cluster was read again")
				return sc.index(t), nil
			},
		}
		ix := sc.index(t)
		report := guard.Audit(ix, guard.AuditFilter{})
		probes := s.Plan(ix, &report)
		if err := s.Run(t.Context(), probes); err != nil {
			t.Fatal(err)
		}
		guard.JudgeProbes(&report, probes, nil, "")
		if len(probes) != 3 || report.Probe.Counted != 0 || len(report.Probe.NoProof) != 1 {
			t.Errorf("%d probes, summary %+v", len(probes), report.Probe)
		}
	})
}

// TestPlan says what is not probed at all, and why.
func TestPlan(t *testing.T) {
	sc := scene{port: 30080, udp: 30053, ipv6: true, endpoints: []string{"n1"}}
	ix := sc.index(t)
	report := guard.Audit(ix, guard.AuditFilter{})
	s := Survey{Address: func(node string, family corev1.IPFamily) (netip.Addr, bool) {
		return netip.MustParseAddr(places[node]), family == corev1.IPv4Protocol
	}}
	var got []string
	for _, p := range s.Plan(ix, &report) {
		if p.Node == "n1" {
			got = append(got, fmt.Sprintf("%s %s %s: %s", p.Title(), p.Predicted, p.Address, p.NotCounted))
		}
	}
	slices.Sort(got)
	want := []string{
		"dns/UDP 30053 IPv6 Refused : UDP: silence is a usual answer, so no probe can prove it",
		"dns/UDP 30053 OK : UDP: silence is a usual answer, so no probe can prove it",
		"http/TCP 30080 IPv6 Refused : the node has no IPv6 address",
		"http/TCP 30080 OK 192.0.2.1:30080: ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
