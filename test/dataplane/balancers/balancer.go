package balancers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/dataplane"
)

// Names of the balancers.
const (
	// HAProxyHealthCheck is HAProxy with a check of healthCheckNodePort.
	HAProxyHealthCheck = "haproxy-healthcheck"
	// HAProxyTCP is HAProxy with a TCP check of the nodePort. It knows nothing of policy Local: it finds out that a node has
	// no endpoint when connections fail.
	HAProxyTCP = "haproxy-tcp"
	// NodePort is HAProxy without any check: it sends to the nodes it was told of until it is told otherwise.
	NodePort = "nodeport"
	// MetalLBL2 is MetalLB's announcement of an address by ARP from one node.
	MetalLBL2 = "metallb-l2"
	// MetalLBBGP is MetalLB's announcement by BGP from every node, to a router that spreads connections over them.
	MetalLBBGP = "metallb-bgp"
)

// Names are all balancers, in the order in which tables show them.
var Names = []string{HAProxyHealthCheck, HAProxyTCP, NodePort, MetalLBL2, MetalLBBGP}

// Balancer brings requests from outside the cluster to its nodes. A client of it is any host of the lab that it was
// started with.
type Balancer interface {
	// Traits tells what it is and what has to be said to use it.
	Traits() Traits
	// Carry makes it carry these Services and no others, and returns when every node with a Ready endpoint is in rotation
	// and requests of the client are answered.
	Carry(ctx context.Context, services ...*corev1.Service) error
	// Target is what clients dial for the first port of a Service that it carries.
	Target(svc *corev1.Service) netip.AddrPort
	// Rotation gives access to which nodes it sends to.
	Rotation
	// Stop ends it. The lab ends it too when it goes down.
	Stop(ctx context.Context) error
}

// Rotation is which nodes a balancer sends new connections to.
type Rotation interface {
	// Shown returns the names of the nodes that the balancer itself says it sends new connections of the Service to, by
	// its API or its socket, sorted. What the data plane does is another matter, and may be earlier or later.
	Shown(ctx context.Context, svc *corev1.Service) ([]string, error)
	// Remove takes a node out of the rotation of every Service by the balancer's own means, and Return puts it back. Both
	// only give the command.
	Remove(ctx context.Context, node string) error
	Return(ctx context.Context, node string) error
}

// Forwarding is a balancer whose data plane can be looked at: by ARP, or in a router's kernel.
type Forwarding interface {
	// Forwards returns the names of the nodes that the data plane sends new connections of the Service to, sorted.
	Forwards(ctx context.Context, svc *corev1.Service) ([]string, error)
}

var (
	_ Forwarding = (*L2)(nil)
	_ Forwarding = (*BGP)(nil)
)

// Traits tell what a balancer is.
type Traits struct {
	Name string
	// Service makes a Service one that this balancer carries: its type, its class and what else the balancer reads.
	Service func(*corev1.Service)
	// Ways are how safedrain can take a node out of it, best first; empty when there is none but the balancer's own.
	Ways []Way
	// Source says whether pods see the client's address.
	Source bool
	// Drains says whether connections that are open when a node leaves stay until they end.
	Drains bool
	// OneNode says that a Service is carried by one node at a time.
	OneNode bool
}

// Way is one way to let safedrain take nodes out of a balancer.
type Way struct {
	// Name is "hook" (exec), "http", "label" or "health-check".
	Name string
	// Annotations go onto the Service.
	Annotations map[string]string
	// Flags go to `safedrain drain` and `safedrain uncordon`.
	Flags []string
}

// Way returns the way of that name.
func (t Traits) Way(name string) (Way, bool) {
	i := slices.IndexFunc(t.Ways, func(w Way) bool { return w.Name == name })
	if i < 0 {
		return Way{}, false
	}
	return t.Ways[i], true
}

// Fault is something that goes wrong with a balancer.
type Fault struct {
	// Name is one lower case word or several joined by dashes.
	Name string
	// Says what it is, for people.
	Says string
	// Node says that it happens to the balancer's agent on one node; others ignore the node.
	Node bool
	// Inject makes it happen and returns what puts things right again.
	Inject func(ctx context.Context, node string) (undo func(context.Context) error, err error)
}

// Faulty is a balancer that can be broken on purpose.
type Faulty interface {
	// Faults are those that it knows, sorted by name.
	Faults() []Fault
}

// FaultOf returns a fault of a balancer by its name.
func FaultOf(b Balancer, name string) (Fault, error) {
	f, ok := b.(Faulty)
	if !ok {
		return Fault{}, fmt.Errorf("%s knows no faults", b.Traits().Name)
	}
	for _, fault := range f.Faults() {
		if fault.Name == name {
			return fault, nil
		}
	}
	return Fault{}, fmt.Errorf("%s knows no fault %q", b.Traits().Name, name)
}

// Set is the balancers of one lab.
type Set struct {
	Balancers []Balancer // in the order of [Names]
	metallb   *MetalLB
}

// Start starts balancers in front of a lab; none named means all. The client gets the routes it needs. What is missing on
// this machine is said before anything is started.
func Start(ctx context.Context, lab *dataplane.Lab, client *dataplane.Host, names ...string) (*Set, error) {
	if len(names) == 0 {
		names = Names
	}
	if err := Requirements(names...); err != nil {
		return nil, err
	}
	s := &Set{}
	for _, name := range Names {
		if !slices.Contains(names, name) {
			continue
		}
		b, err := s.start(ctx, lab, client, name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start balancer %s: %w", name, err), s.Stop(context.WithoutCancel(ctx)))
		}
		s.Balancers = append(s.Balancers, b)
	}
	return s, nil
}

func (s *Set) start(ctx context.Context, lab *dataplane.Lab, client *dataplane.Host, name string) (Balancer, error) {
	switch name {
	case HAProxyHealthCheck, HAProxyTCP, NodePort:
		return NewHAProxy(ctx, lab, client, name)
	case MetalLBL2, MetalLBBGP:
		if s.metallb == nil {
			m, err := InstallMetalLB(ctx, lab)
			if err != nil {
				return nil, err
			}
			s.metallb = m
		}
		if name == MetalLBL2 {
			return s.metallb.L2(ctx, client)
		}
		return s.metallb.BGP(ctx, client)
	}
	return nil, fmt.Errorf("no balancer is named %q", name)
}

// Get returns a balancer of the set by its name, or nil.
func (s *Set) Get(name string) Balancer {
	for _, b := range s.Balancers {
		if b.Traits().Name == name {
			return b
		}
	}
	return nil
}

// Stop ends all of them, the last first.
func (s *Set) Stop(ctx context.Context) error {
	var errs []error
	for _, b := range slices.Backward(s.Balancers) {
		errs = append(errs, b.Stop(ctx))
	}
	s.Balancers = nil
	return errors.Join(errs...)
}
