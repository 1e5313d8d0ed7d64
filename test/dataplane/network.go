package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

const (
	gateway   = 1   // the last number of the bridge's address
	firstNode = 11  // and of node-1
	firstHost = 101 // and of the first host
)

// makeBridge makes the lab's segment in the namespace of this process.
func (l *Lab) makeBridge(ctx context.Context) error {
	br := l.plan.bridge()
	lines := []string{
		"link add " + br + " type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
		"link set " + br + " up",
		fmt.Sprintf("addr add %s dev %s", l.plan.segment(gateway), br),
	}
	if l.IPv6 {
		lines = append(lines, fmt.Sprintf("addr add %s dev %s nodad", l.plan.segment6(gateway), br))
	}
	return spawn.IP(ctx, "", lines...)
}

// makeHost makes a namespace with an interface on the segment; last is the last number of its addresses.
func (l *Lab) makeHost(ctx context.Context, name string, last int) (*Host, error) {
	h := &Host{
		Name: name, Netns: l.plan.netns(name), Addr: l.plan.segment(last).Addr(), MAC: l.plan.mac(last),
		lab: l, veth: l.plan.veth(last),
	}
	if l.IPv6 {
		h.Addr6 = l.plan.segment6(last).Addr()
	}
	err := spawn.IP(ctx, "",
		"netns add "+h.Netns,
		fmt.Sprintf("link add %s type veth peer name eth0 address %s netns %s", h.veth, h.MAC, h.Netns),
		fmt.Sprintf("link set %s master %s up", h.veth, l.plan.bridge()),
	)
	if err != nil {
		return nil, fmt.Errorf("make host %q: %w", name, err)
	}
	if err := quietNamespace(h.Netns); err != nil {
		return nil, err
	}
	lines := []string{"link set lo up", "link set eth0 up", fmt.Sprintf("addr add %s dev eth0", l.plan.segment(last))}
	if l.IPv6 {
		lines = append(lines, fmt.Sprintf("addr add %s dev eth0 nodad", l.plan.segment6(last)))
	}
	if err := spawn.IP(ctx, h.Netns, lines...); err != nil {
		return nil, fmt.Errorf("make host %q: %w", name, err)
	}
	return h, nil
}

// quietNamespace lets packets come back another way than they went, as they do behind routers and balancers, and keeps
// redirects and duplicate address detection out.
func quietNamespace(netns string) error {
	return Sysctl(netns, map[string]string{
		"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0",
		"net/ipv4/conf/all/accept_redirects": "0", "net/ipv4/conf/default/accept_redirects": "0",
		"net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/default/send_redirects": "0",
		"net/ipv6/conf/all/accept_dad": "0", "net/ipv6/conf/default/accept_dad": "0",
		"net/ipv6/conf/all/accept_ra": "0", "net/ipv6/conf/default/accept_ra": "0",
	})
}

// Sysctl sets kernel settings in a network namespace. Names are paths below /proc/sys, such as "net/ipv4/ip_forward".
func Sysctl(netns string, settings map[string]string) error {
	return spawn.Do(netns, func() error {
		var errs []error
		for name, value := range settings {
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o600))
		}
		return errors.Join(errs...)
	})
}

// makeNodes makes the namespaces of the nodes, each with a range for its pods that the others have a route to.
func (l *Lab) makeNodes(ctx context.Context, count int) error {
	for n := 1; n <= count; n++ {
		h, err := l.makeHost(ctx, fmt.Sprintf("node-%d", n), firstNode+n-1)
		if err != nil {
			return err
		}
		node := &Node{Host: *h}
		v4, v6 := l.plan.nodePods(n)
		node.PodRange = v4
		if l.IPv6 {
			node.PodRange6 = v6
		}
		err = Sysctl(h.Netns, map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
		if err != nil {
			return err
		}
		l.Nodes = append(l.Nodes, node)
	}
	for _, node := range l.Nodes {
		// Packets to a pod that has gone vanish, as with most network plugins.
		routes := []string{fmt.Sprintf("route add blackhole %s", node.PodRange)}
		if l.IPv6 {
			routes = append(routes, fmt.Sprintf("route add blackhole %s", node.PodRange6))
		}
		for _, other := range l.Nodes {
			if other == node {
				continue
			}
			routes = append(routes, fmt.Sprintf("route add %s via %s", other.PodRange, other.Addr))
			if l.IPv6 {
				routes = append(routes, fmt.Sprintf("route add %s via %s", other.PodRange6, other.Addr6))
			}
		}
		if err := spawn.IP(ctx, node.Netns, routes...); err != nil {
			return err
		}
	}
	return nil
}

// removeNetwork removes the namespaces and interfaces of a lab; its processes have ended before.
func removeNetwork(ctx context.Context, p plan) error {
	files, err := filepath.Glob(filepath.Join(netnsDir, p.netnsPrefix()+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, spawn.IP(ctx, "", "netns del "+filepath.Base(file)))
	}
	// The interfaces go with the namespaces of their other ends, but somewhat later.
	links, err := filepath.Glob(filepath.Join("/sys/class/net", p.bridge()+"*"))
	if err != nil {
		return err
	}
	for _, link := range links {
		name := filepath.Base(link)
		if name != p.bridge() && !strings.HasPrefix(name, p.bridge()+".") {
			continue // sdlab10 is not of lab 1
		}
		if err := spawn.IP(ctx, "", "link del "+name); err != nil {
			if _, gone := os.Stat(link); gone == nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// mounted reports whether a directory is a mount point.
func mounted(dir string) bool {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == dir {
			return true
		}
	}
	return false
}

// unmount does what it can: a mount that is in use stays.
func unmount(ctx context.Context, dir string) {
	for range 2 { // making a namespace may mount the directory over itself twice
		if !mounted(dir) || exec.CommandContext(ctx, "umount", dir).Run() != nil {
			return
		}
	}
}
