package cluster

import (
	"fmt"
	"math"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	netutils "k8s.io/utils/net"

	"github.com/safedrain/safedrain/pkg/guard"
)

// slice is an EndpointSlice in a quarter of its memory: a cluster has tens of thousands of them and hundreds of
// thousands of endpoints, and they are most of what a plan holds.
type slice struct {
	service   guard.Key
	name      string
	managedBy string
	headless  bool // labelled service.kubernetes.io/headless, which kube-proxy does not watch
	family    corev1.IPFamily
	ports     []slicePort
	endpoints []endpoint
}

// slicePort is a port of a slice that kube-proxy would use.
type slicePort struct {
	name     string
	protocol corev1.Protocol
	number   int32
}

// endpoint is one endpoint of a slice: its first address, which is the only one kube-proxy reads.
type endpoint struct {
	addr   netip.Addr
	node   string
	pod    types.UID
	podKey guard.Key
	flags  condition
}

// condition packs three optional booleans: two bits each, set and value.
type condition uint8

const (
	readySet condition = 1 << iota
	readyTrue
	servingSet
	servingTrue
	terminatingSet
	terminatingTrue
)

// labelHeadless marks the slices that kube-proxy leaves out.
const labelHeadless = corev1.IsHeadlessService

// compactSlice packs an EndpointSlice. It returns nil for one that no Service and no proxy uses: without the label of a
// Service, or of the deprecated address type FQDN.
func compactSlice(s *discoveryv1.EndpointSlice, in interner) (*slice, error) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil //nolint:nilnil // nil is the documented answer for a slice that nobody uses
	}
	family := corev1.IPv4Protocol
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4:
	case discoveryv1.AddressTypeIPv6:
		family = corev1.IPv6Protocol
	default:
		return nil, fmt.Errorf("addressType %q is none of IPv4, IPv6, FQDN", s.AddressType)
	}
	_, headless := s.Labels[labelHeadless]
	namespace := in.of(s.Namespace)
	c := &slice{
		service:   guard.Key{Namespace: namespace, Name: in.of(service)},
		name:      s.Name,
		managedBy: in.of(s.Labels[discoveryv1.LabelManagedBy]),
		headless:  headless,
		family:    family,
	}
	for _, p := range s.Ports {
		if p.Name == nil || p.Port == nil || *p.Port <= 0 || *p.Port > math.MaxUint16 {
			continue
		}
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		c.ports = append(c.ports, slicePort{in.of(*p.Name), corev1.Protocol(in.of(string(protocol))), *p.Port})
	}
	c.endpoints = make([]endpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		e, ok, err := compactEndpoint(&s.Endpoints[i], namespace, in)
		if err != nil {
			return nil, fmt.Errorf("endpoints[%d]: %w", i, err)
		}
		if ok {
			c.endpoints = append(c.endpoints, e)
		}
	}
	return c, nil
}

// compactEndpoint packs one endpoint; false when it has no address.
func compactEndpoint(from *discoveryv1.Endpoint, namespace string, in interner) (endpoint, bool, error) {
	if len(from.Addresses) == 0 {
		return endpoint{}, false, nil
	}
	addr, err := parseAddr(from.Addresses[0])
	if err != nil {
		return endpoint{}, false, err
	}
	e := endpoint{addr: addr}
	if from.NodeName != nil {
		e.node = in.of(*from.NodeName)
	}
	if ref := from.TargetRef; ref != nil && ref.Kind == "Pod" {
		both := string(ref.UID) + ref.Name // one allocation in place of two
		e.pod = types.UID(both[:len(ref.UID)])
		e.podKey = guard.Key{Namespace: namespace, Name: both[len(ref.UID):]}
		if ref.Namespace != "" {
			e.podKey.Namespace = in.of(ref.Namespace)
		}
	}
	c := &from.Conditions
	e.flags = bits(c.Ready, readySet, readyTrue) | bits(c.Serving, servingSet, servingTrue) |
		bits(c.Terminating, terminatingSet, terminatingTrue)
	return e, true, nil
}

// parseAddr reads an address as kube-proxy does, leading zeros included.
func parseAddr(s string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Unmap(), nil
	}
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	if !ok {
		return netip.Addr{}, fmt.Errorf("address %q is no IP address", s)
	}
	return addr.Unmap(), nil
}

func bits(b *bool, set, value condition) condition {
	switch {
	case b == nil:
		return 0
	case *b:
		return set | value
	default:
		return set
	}
}

// read returns a condition's value, or what its absence means.
func (c condition) read(set, value condition, absent bool) bool {
	if c&set == 0 {
		return absent
	}
	return c&value != 0
}

// pointer returns a condition as an EndpointSlice states it.
func (c condition) pointer(set, value condition) *bool {
	if c&set == 0 {
		return nil
	}
	b := c&value != 0
	return &b
}

// fact returns the endpoint as the rules read it.
func (e *endpoint) fact() guard.Endpoint {
	return guard.Endpoint{
		Addr: e.addr, Node: e.node, Pod: e.pod, PodKey: e.podKey,
		Ready:       e.flags.read(readySet, readyTrue, true),
		Serving:     e.flags.read(servingSet, servingTrue, true),
		Terminating: e.flags.read(terminatingSet, terminatingTrue, false),
	}
}

// carries returns the number by which the slice has that port, and whether it has it.
func (s *slice) carries(name string, protocol corev1.Protocol) (uint16, bool) {
	for _, p := range s.ports {
		if p.name == name && p.protocol == protocol {
			return uint16(p.number), true //nolint:gosec // compactSlice left out what is no port number
		}
	}
	return 0, false
}

// expand returns the slice as an API object, for hooks: labels, ports, and of each endpoint the first address, node,
// conditions and pod.
func (s *slice) expand() *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.service.Namespace, Name: s.name,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.service.Name},
		},
		AddressType: discoveryv1.AddressType(s.family),
		Endpoints:   make([]discoveryv1.Endpoint, len(s.endpoints)),
	}
	if s.managedBy != "" {
		out.Labels[discoveryv1.LabelManagedBy] = s.managedBy
	}
	if s.headless {
		out.Labels[labelHeadless] = ""
	}
	for i := range s.ports {
		p := s.ports[i]
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: &p.number})
	}
	for i := range s.endpoints {
		out.Endpoints[i] = s.endpoints[i].expand()
	}
	return out
}

func (e *endpoint) expand() discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{
		Addresses: []string{e.addr.String()},
		Conditions: discoveryv1.EndpointConditions{
			Ready:       e.flags.pointer(readySet, readyTrue),
			Serving:     e.flags.pointer(servingSet, servingTrue),
			Terminating: e.flags.pointer(terminatingSet, terminatingTrue),
		},
	}
	if e.node != "" {
		node := e.node
		out.NodeName = &node
	}
	if e.podKey.Name != "" {
		out.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: e.podKey.Namespace, Name: e.podKey.Name, UID: e.pod}
	}
	return out
}
