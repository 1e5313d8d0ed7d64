package dataplane

import (
	"fmt"
	"net/netip"
)

// The labs of one machine are numbered; everything that has to differ between two of them follows from the number.
const (
	firstOctet = 64 // lab 0 is 10.64.0.0/16
	maxLabs    = 32 // 10.96.0.0/16 is for Services
	maxNodes   = 60
	maxHosts   = 90
)

// plan is how a lab's names and addresses are laid out. The lab with number 5 has:
//
//	10.69.0.0/24           the segment: .1 the bridge and the API server, .11 and up the nodes, .101 and up the hosts,
//	                       .200 to .250 free for the addresses of balancers
//	10.69.128.0/17         the pods: 10.69.129.0/24 on node-1 and so on
//	fd00:5d:5::/64         the segment, with the same last numbers
//	fd00:5d:5:100::/56     the pods: fd00:5d:5:101::/64 on node-1 and so on
type plan struct {
	name   string
	number int
}

func (p plan) whole() netip.Prefix { return p.v4(0, 0, 16) }

func (p plan) v4(third, last, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(firstOctet + p.number), byte(third), byte(last)}), bits)
}

func (p plan) v6(subnet, last, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd00:5d:%x:%x::%x", p.number, subnet, last)), bits)
}

func (p plan) segment(last int) netip.Prefix  { return p.v4(0, last, 24) }
func (p plan) segment6(last int) netip.Prefix { return p.v6(0, last, 64) }
func (p plan) pods() netip.Prefix             { return p.v4(128, 0, 17) }
func (p plan) pods6() netip.Prefix            { return p.v6(0x100, 0, 56) }

// nodePods are the pod ranges of a node, counted from 1.
func (p plan) nodePods(n int) (v4, v6 netip.Prefix) {
	return p.v4(128+n, 0, 24), p.v6(0x100+n, 0, 64)
}

func (p plan) bridge() string           { return fmt.Sprintf("sdlab%d", p.number) }
func (p plan) veth(last int) string     { return fmt.Sprintf("sdlab%d.%d", p.number, last) }
func (p plan) mac(last int) string      { return fmt.Sprintf("02:5d:%02x:00:00:%02x", p.number, last) }
func (p plan) netns(host string) string { return p.netnsPrefix() + host }
func (p plan) netnsPrefix() string      { return "sdlab-" + p.name + "-" }
