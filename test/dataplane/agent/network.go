package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

// network gives pods namespaces and addresses from the node's ranges. A pod is reached over a pair of interfaces, with a
// route of its own in the node's namespace; there is no bridge.
type network struct {
	node   string // the node's namespace
	nodeIP netip.Addr

	mu     sync.Mutex
	ranges []*addresses
}

// addresses hands out the addresses of one range in turn, so that one is not used again soon after its pod has gone.
type addresses struct {
	prefix netip.Prefix
	last   netip.Addr
	used   map[netip.Addr]bool
}

// newAddresses leaves the first two addresses of a range out: its own and a gateway's.
func newAddresses(prefix netip.Prefix) *addresses {
	return &addresses{prefix: prefix, last: prefix.Addr().Next(), used: map[netip.Addr]bool{}}
}

// newNetwork removes what an earlier agent of the node left behind.
func newNetwork(ctx context.Context, node string, ranges []string, nodeIP netip.Addr) (*network, error) {
	n := &network{node: node, nodeIP: nodeIP}
	for _, text := range ranges {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the pod range of the node: %w", err)
		}
		n.ranges = append(n.ranges, newAddresses(prefix))
	}
	left, err := filepath.Glob(spawn.Path(n.prefix() + "*"))
	if err != nil {
		return nil, err
	}
	for _, file := range left {
		if err := spawn.IP(ctx, "", "netns del "+filepath.Base(file)); err != nil {
			return nil, err
		}
	}
	return n, removeLinks(ctx)
}

func (n *network) prefix() string { return n.node + "-pod-" }

// podLink is the name of a pod's interface in the node's namespace.
var podLink = regexp.MustCompile(`^p[0-9a-f]{12}$`)

// removeLinks removes the interfaces of pods whose namespaces are deleted: they, and the routes over them, last until the
// kernel is done with the namespace, and would stand in the way of the same pods.
func removeLinks(ctx context.Context) error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, link := range links {
		if !podLink.MatchString(link.Name) {
			continue
		}
		if err := spawn.IP(ctx, "", "link del "+link.Name); err != nil && exists(link.Name) {
			return err
		}
	}
	return nil
}

// exists reports whether the namespace has an interface of that name: one may go by itself at any moment.
func exists(link string) bool {
	_, err := net.InterfaceByName(link)
	return err == nil
}

// take returns the addresses that a pod had before, if it had one of each range and they are free, or else a free one of
// each range.
func (n *network) take(before []corev1.PodIP) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if taken := n.again(before); taken != nil {
		return taken, nil
	}
	var taken []netip.Addr
	for _, r := range n.ranges {
		addr := r.last.Next()
		for tries := 0; r.used[addr] || !r.prefix.Contains(addr.Next()); tries++ {
			if tries > 1000 {
				return nil, fmt.Errorf("no address is free in %s", r.prefix)
			}
			if !r.prefix.Contains(addr.Next()) { // the last one is the range's broadcast address
				addr = r.prefix.Addr().Next()
			}
			addr = addr.Next()
		}
		r.used[addr], r.last = true, addr
		taken = append(taken, addr)
	}
	return taken, nil
}

// again takes the addresses that a pod had before an agent was started anew.
func (n *network) again(before []corev1.PodIP) []netip.Addr {
	if len(before) != len(n.ranges) {
		return nil
	}
	var taken []netip.Addr
	for i, r := range n.ranges {
		addr, err := netip.ParseAddr(before[i].IP)
		if err != nil || !r.prefix.Contains(addr) || r.used[addr] {
			return nil
		}
		taken = append(taken, addr)
	}
	for i, r := range n.ranges {
		r.used[taken[i]] = true
	}
	return taken
}

func (n *network) give(addrs []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, addr := range addrs {
		for _, r := range n.ranges {
			delete(r.used, addr)
		}
	}
}

// add makes the namespace of a pod and returns its name and addresses, IPv4 first where the node's first range is.
func (n *network) add(ctx context.Context, pod *corev1.Pod) (netns string, addrs []netip.Addr, err error) {
	addrs, err = n.take(pod.Status.PodIPs)
	if err != nil {
		return "", nil, err
	}
	id := strings.ReplaceAll(string(pod.UID), "-", "")
	netns, veth := n.prefix()+pod.Name[:min(len(pod.Name), 80)]+"-"+id[:8], "p"+id[:12]
	inNode := []string{
		"netns add " + netns,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %s", veth, netns),
		"link set " + veth + " up",
		"addr add fe80::1/64 dev " + veth + " nodad",
	}
	inPod := []string{"link set lo up", "link set eth0 up"}
	for _, addr := range addrs {
		inNode = append(inNode, fmt.Sprintf("route add %s dev %s", netip.PrefixFrom(addr, addr.BitLen()), veth))
		inPod = append(inPod, fmt.Sprintf("addr add %s dev eth0", netip.PrefixFrom(addr, addr.BitLen())))
		if addr.Is4() {
			inPod = append(inPod, fmt.Sprintf("route add %s dev eth0", n.nodeIP), fmt.Sprintf("route add default via %s dev eth0", n.nodeIP))
		} else {
			inPod[len(inPod)-1] += " nodad"
			inPod = append(inPod, "route add ::/0 via fe80::1 dev eth0")
		}
	}
	if err := errors.Join(spawn.IP(ctx, "", inNode...), quiet(netns)); err != nil {
		return netns, addrs, err
	}
	return netns, addrs, spawn.IP(ctx, netns, inPod...)
}

// quiet lets the addresses of a pod be used at once.
func quiet(netns string) error {
	return spawn.Do(netns, func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv6/conf/all/accept_dad", []byte("0"), 0o600),
			os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o600),
		)
	})
}

// remove removes the namespace of a pod, and with it both ends of its interface, and frees its addresses.
func (n *network) remove(ctx context.Context, netns string, addrs []netip.Addr) error {
	if _, err := os.Stat(spawn.Path(netns)); err != nil {
		return nil //nolint:nilerr // it was never made
	}
	if err := spawn.IP(ctx, "", "netns del "+netns); err != nil {
		return err
	}
	n.give(addrs)
	return nil
}
