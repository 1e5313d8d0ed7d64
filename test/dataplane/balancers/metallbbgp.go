package balancers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

const (
	clusterAS = 64512
	routerAS  = 64513
)

// bgpPool is the range of addresses that are announced by BGP: one for documentation, on no segment of a lab.
var bgpPool = netip.MustParsePrefix("198.51.100.0/24")

// BGP is MetalLB's announcement by BGP to a router, which spreads connections over the nodes by a hash of addresses and
// ports. When the set of nodes changes, most open connections change their node and are reset.
type BGP struct {
	*MetalLB

	client    *dataplane.Host
	router    *Router
	addresses map[types.NamespacedName]netip.Addr
}

var _ Balancer = (*BGP)(nil)

// BGP starts a router, lets every speaker peer with it, and gives the client a route to the pool through it.
func (m *MetalLB) BGP(ctx context.Context, client *dataplane.Host) (*BGP, error) {
	router, err := StartRouter(ctx, m.lab)
	if err != nil {
		return nil, err
	}
	b := &BGP{MetalLB: m, client: client, router: router, addresses: map[types.NamespacedName]netip.Addr{}}
	steps := []func() error{
		func() error {
			return m.configure(ctx, pools, "IPAddressPool", "bgp", map[string]any{"addresses": []any{bgpPool.String()}})
		},
		func() error {
			return m.configure(ctx, bgpAdverts, "BGPAdvertisement", "bgp", map[string]any{"ipAddressPools": []any{"bgp"}})
		},
		func() error {
			return m.configure(ctx, bgpPeers, "BGPPeer", "router", map[string]any{
				"myASN": int64(clusterAS), "peerASN": int64(routerAS), "peerAddress": router.Host.Addr.String(),
			})
		},
		func() error {
			_, err := client.Run(ctx, "ip", "route", "replace", bgpPool.String(), "via", router.Host.Addr.String())
			return err
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Traits tells what it is.
func (b *BGP) Traits() Traits {
	return Traits{Name: MetalLBBGP, Service: forPool("bgp"), Ways: []Way{{Name: "label"}}, Source: true}
}

// Router is the router that the speakers peer with.
func (b *BGP) Router() *Router { return b.router }

// Carry waits until the router sends to every node with a Ready endpoint.
func (b *BGP) Carry(ctx context.Context, services ...*corev1.Service) error {
	for _, svc := range services {
		addr, err := b.address(ctx, svc)
		if err != nil {
			return err
		}
		b.addresses[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = addr
		if err := b.waitRouted(ctx, svc); err != nil {
			return fmt.Errorf("%w\n%s", err, b.router.Logs())
		}
		if err := answering(ctx, b, svc, b.client); err != nil {
			return err
		}
	}
	return nil
}

func (b *BGP) waitRouted(ctx context.Context, svc *corev1.Service) error {
	what := fmt.Sprintf("the router sends to every node of service %s/%s", svc.Namespace, svc.Name)
	return controlplane.Poll(ctx, startTimeout, what, func(ctx context.Context) (bool, string, error) {
		want, err := readyNodes(ctx, b.lab, svc)
		if err != nil {
			return false, "", err
		}
		shown, err := b.Shown(ctx, svc)
		if err != nil {
			return false, "", err
		}
		routed, err := b.Forwards(ctx, svc)
		done := len(want) > 0 && slices.Equal(want, shown) && slices.Equal(want, routed)
		return done, fmt.Sprintf("with a Ready endpoint: %v, status: %v, routed: %v", want, shown, routed), err
	})
}

// Target is the Service's own address and port.
func (b *BGP) Target(svc *corev1.Service) netip.AddrPort { return target(b.addresses, svc) }

// Shown reads the ServiceBGPStatus objects of the Service.
func (b *BGP) Shown(ctx context.Context, svc *corev1.Service) ([]string, error) {
	return b.announcers(ctx, metallb.BGPStatuses, svc)
}

// Forwards reads the router's kernel: the nodes that its route to the Service's address leads to, sorted.
func (b *BGP) Forwards(ctx context.Context, svc *corev1.Service) ([]string, error) {
	hops, err := b.router.NextHops(ctx, b.Target(svc).Addr())
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, n := range b.lab.Nodes {
		if slices.Contains(hops, n.Addr) {
			nodes = append(nodes, n.Name)
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}

// Stop ends the router; speakers end with the lab.
func (b *BGP) Stop(ctx context.Context) error { return b.router.Stop(ctx) }
