package balancers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

// L2 is MetalLB's announcement by ARP: one node at a time answers for the address of a Service. Connections that are open
// when the address moves are reset, and again when it moves back.
type L2 struct {
	*MetalLB

	client    *dataplane.Host
	addresses map[types.NamespacedName]netip.Addr
}

var _ Balancer = (*L2)(nil)

// L2 configures a pool of addresses of the lab's segment, announced by ARP. The client is on the segment.
func (m *MetalLB) L2(ctx context.Context, client *dataplane.Host) (*L2, error) {
	first, last := m.lab.Balancers()
	l := &L2{MetalLB: m, client: client, addresses: map[types.NamespacedName]netip.Addr{}}
	if err := m.configure(ctx, pools, "IPAddressPool", "l2", map[string]any{"addresses": []any{fmt.Sprintf("%s-%s", first, last)}}); err != nil {
		return nil, err
	}
	return l, m.configure(ctx, l2Adverts, "L2Advertisement", "l2", map[string]any{
		"ipAddressPools": []any{"l2"}, "interfaces": []any{"eth0"},
	})
}

// Traits tells what it is.
func (l *L2) Traits() Traits {
	return Traits{
		Name: MetalLBL2, Service: forPool("l2"), Ways: []Way{{Name: "label"}},
		Source: true, OneNode: true,
	}
}

// Carry waits until each Service has its address and one node answers for it.
func (l *L2) Carry(ctx context.Context, services ...*corev1.Service) error {
	for _, svc := range services {
		addr, err := l.address(ctx, svc)
		if err != nil {
			return err
		}
		l.addresses[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = addr
		if err := l.waitAnnounced(ctx, svc); err != nil {
			return err
		}
		if err := answering(ctx, l, svc, l.client); err != nil {
			return err
		}
	}
	return nil
}

func (l *L2) waitAnnounced(ctx context.Context, svc *corev1.Service) error {
	what := fmt.Sprintf("one node answers for service %s/%s", svc.Namespace, svc.Name)
	return controlplane.Poll(ctx, startTimeout, what, func(ctx context.Context) (bool, string, error) {
		shown, err := l.Shown(ctx, svc)
		if err != nil {
			return false, "", err
		}
		answers, err := l.Forwards(ctx, svc)
		return len(shown) == 1 && slices.Equal(shown, answers), fmt.Sprintf("status: %v, ARP: %v", shown, answers), err
	})
}

// Leader is the node that MetalLB elects for an address among nodes: that with the lowest digest of both names.
func Leader(nodes []*dataplane.Node, addr netip.Addr) string {
	var name string
	var lowest []byte
	for _, n := range nodes {
		sum := sha256.Sum256([]byte(n.Name + "#" + addr.String()))
		if lowest == nil || bytes.Compare(sum[:], lowest) < 0 {
			name, lowest = n.Name, sum[:]
		}
	}
	return name
}

// Target is the Service's own address and port.
func (l *L2) Target(svc *corev1.Service) netip.AddrPort { return target(l.addresses, svc) }

func target(addresses map[types.NamespacedName]netip.Addr, svc *corev1.Service) netip.AddrPort {
	addr := addresses[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}]
	return netip.AddrPortFrom(addr, uint16(svc.Spec.Ports[0].Port))
}

// Shown reads the ServiceL2Status objects of the Service.
func (l *L2) Shown(ctx context.Context, svc *corev1.Service) ([]string, error) {
	return l.announcers(ctx, metallb.L2Statuses, svc)
}

// Halves lists the status objects of a Service that one node is the label of and another the content, by name. A speaker that
// takes over a status cannot change its content, which the API server refuses; so a Service whose node was cut off may
// keep such a status, which goes with a later withdrawal and is not made anew.
func (l *L2) Halves(ctx context.Context, svc *corev1.Service) ([]string, error) {
	selector := labels.Set{metallb.LabelServiceName: svc.Name, metallb.LabelServiceNamespace: svc.Namespace}
	list, err := l.dynamic.Resource(metallb.L2Statuses).Namespace(metallbNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		content, _, err := unstructured.NestedString(list.Items[i].Object, "status", "node")
		if err != nil {
			return nil, err
		}
		if label := list.Items[i].GetLabels()[metallb.LabelNode]; content != "" && label != content {
			names = append(names, list.Items[i].GetName())
		}
	}
	return names, nil
}

// Mend removes those status objects: the speaker that is the label of one makes it anew.
func (l *L2) Mend(ctx context.Context, svc *corev1.Service) error {
	names, err := l.Halves(ctx, svc)
	errs := []error{err}
	for _, name := range names {
		err := l.dynamic.Resource(metallb.L2Statuses).Namespace(metallbNamespace).Delete(ctx, name, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Forwards asks on the segment who answers for the Service's address, by ARP from the client. What the client's own table
// says, Neighbour tells.
func (l *L2) Forwards(ctx context.Context, svc *corev1.Service) ([]string, error) {
	// The exit code says whether there was an answer, which is no error here.
	out, _ := l.client.Command(ctx, program("arping"), "-c", "1", "-w", "1", "-I", "eth0", l.Target(svc).Addr().String()).Output()
	var nodes []string
	for _, n := range l.lab.Nodes {
		if strings.Contains(strings.ToLower(string(out)), n.MAC) {
			nodes = append(nodes, n.Name)
		}
	}
	slices.Sort(nodes)
	return nodes, ctx.Err()
}

// Neighbour is the node that the client's own neighbour table has for the Service's address; "" when it has none.
func (l *L2) Neighbour(ctx context.Context, svc *corev1.Service) (string, error) {
	out, err := l.client.Run(ctx, "ip", "neigh", "show", "to", l.Target(svc).Addr().String(), "dev", "eth0")
	if err != nil {
		return "", err
	}
	for _, n := range l.lab.Nodes {
		if strings.Contains(out, "lladdr "+n.MAC) {
			return n.Name, nil
		}
	}
	return "", nil
}

// Stop leaves the addresses to the Services that have them; speakers end with the lab.
func (l *L2) Stop(context.Context) error { return nil }
