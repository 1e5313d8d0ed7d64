package probe

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

func testNode(name, podCIDR string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if podCIDR != "" {
		n.Spec.PodCIDRs = []string{podCIDR}
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func TestLocate(t *testing.T) {
	nodes := []*corev1.Node{
		testNode("n1", "10.244.1.0/24", "192.0.2.1", "2001:db8::1"),
		testNode("n2", "10.244.2.0/24", "192.0.2.2"),
	}
	addrs := func(texts ...string) []netip.Addr {
		var out []netip.Addr
		for _, s := range texts {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	denied := errors.New("denied")
	for name, test := range map[string]struct {
		own, sources []netip.Addr
		endpoint     string // at 10.244.2.7, on n2
		pod          string // at 10.9.9.9: its node
		podErr       error
		serviceHost  string
		want         Place
		err          error
		n1, n2       string // why each is not counted
	}{
		"outside":           {own: addrs("198.51.100.7"), sources: addrs("198.51.100.7")},
		"on a node":         {own: addrs("10.244.1.1", "192.0.2.1"), sources: addrs("192.0.2.1"), want: Place{Node: "n1"}, n1: "we run on this node"},
		"on a node by IPv6": {own: addrs("2001:db8::1"), want: Place{Node: "n1"}, n1: "we run on this node"},
		"in a pod that is an endpoint": {
			own: addrs("10.244.2.7"), sources: addrs("10.244.2.7"), endpoint: "n2", want: Place{Node: "n2", Pod: true}, n2: "we run in a pod on this node",
		},
		"in a pod by its range": {
			own: addrs("10.244.2.8"), sources: addrs("10.244.2.8"), want: Place{Node: "n2", Pod: true}, n2: "we run in a pod on this node",
		},
		"in a pod that the API knows, whatever the range says": {
			own: addrs("10.9.9.9"), sources: addrs("10.9.9.9"), pod: "n1", serviceHost: "10.96.0.1", want: Place{Node: "n1", Pod: true}, n1: "we run in a pod on this node",
		},
		"in a pod, and nothing tells where": {
			own: addrs("10.9.9.8"), sources: addrs("10.9.9.8"), serviceHost: "10.96.0.1", want: Place{Pod: true, Lost: true},
			n1: "we run in a pod of this cluster, and nothing tells on which node", n2: "we run in a pod of this cluster, and nothing tells on which node",
		},
		"in a pod of another cluster":             {own: addrs("10.9.9.9"), sources: addrs("10.9.9.9"), pod: "n1", serviceHost: "172.20.0.1"},
		"a range of ours that packets do not use": {own: addrs("10.244.1.1", "198.51.100.7"), sources: addrs("198.51.100.7")},
		"the API does not say": {
			own: addrs("10.9.9.9"), sources: addrs("10.9.9.9"), podErr: denied, serviceHost: "10.96.0.1", err: denied,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Locate(t.Context(), Vantage{Own: test.own, Sources: test.sources}, Surroundings{
				Nodes: nodes, ServiceHost: test.serviceHost, APIHost: "10.96.0.1",
				EndpointNode: func(a netip.Addr) string {
					if a == netip.MustParseAddr("10.244.2.7") {
						return test.endpoint
					}
					return ""
				},
				PodNode: func(_ context.Context, a netip.Addr) (string, error) {
					if a == netip.MustParseAddr("10.9.9.9") {
						return test.pod, test.podErr
					}
					return "", nil
				},
			})
			if !errors.Is(err, test.err) || got != test.want {
				t.Fatalf("%+v, %v, want %+v, %v", got, err, test.want, test.err)
			}
			if test.err == nil && (got.Forbids("n1") != test.n1 || got.Forbids("n2") != test.n2) {
				t.Errorf("n1 %q, n2 %q", got.Forbids("n1"), got.Forbids("n2"))
			}
		})
	}
}

// TestDoubts: from a pod, nothing that a node port answers proves anything of any node; a health check does.
func TestDoubts(t *testing.T) {
	for port, doubted := range map[string]bool{"http/TCP": true, guard.PortHealthCheck: false} {
		if got := (Place{Node: "n1", Pod: true}).Doubts(port) != ""; got != doubted {
			t.Errorf("from a pod, %s: doubted %t, want %t", port, got, doubted)
		}
		for _, p := range []Place{{}, {Node: "n1"}} {
			if p.Doubts(port) != "" {
				t.Errorf("%s, %s: doubted", p, port)
			}
		}
	}
}
