package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

// Host is a machine of the lab: a network namespace with one interface, eth0, on the lab's segment.
type Host struct {
	Name  string
	Netns string     // the name that `ip netns` knows the namespace by
	Addr  netip.Addr // IPv4
	Addr6 netip.Addr // not valid unless the lab has IPv6
	MAC   string

	lab  *Lab
	veth string // the other end of eth0, on the bridge
}

// AddHost adds a machine outside the cluster, on the same segment as the nodes: a client, a router, a balancer. It has no
// route to pods or Services. Its name is a DNS label that no node and no other host has.
func (l *Lab) AddHost(ctx context.Context, name string) (*Host, error) {
	taken := func(h *Host) bool { return h.Name == name }
	if slices.ContainsFunc(l.hosts, taken) || slices.ContainsFunc(l.Nodes, func(n *Node) bool { return n.Name == name }) {
		return nil, fmt.Errorf("host %q: a machine of that name is there already", name)
	}
	if len(l.hosts) == maxHosts {
		return nil, fmt.Errorf("host %q: %d hosts are the most", name, maxHosts)
	}
	h, err := l.makeHost(ctx, name, firstHost+len(l.hosts))
	if err != nil {
		return nil, err
	}
	l.hosts = append(l.hosts, h)
	return h, nil
}

// Command returns a command that runs on the host. It is killed when ctx ends, when this process ends, unless the lab is
// lasting, and when the lab goes down.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + spawn.Path(h.Netns), "--", name}, args...)...)
	if !h.lab.record.Lasting {
		cmd.SysProcAttr = spawn.Bound()
	}
	return cmd
}

// Run runs a command on the host to its end and returns its standard output; the error has what it said besides.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	out, err := h.Command(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return string(out), fmt.Errorf("%s on %s: %w", name, h.Name, err)
	}
	return string(out), nil
}

// Do runs f on a thread that is on the host. What f starts on other goroutines is not; a socket stays where it was made.
func (h *Host) Do(f func() error) error { return spawn.Do(h.Netns, f) }

// Listen listens on the host, as net.Listen does.
func (h *Host) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = h.Do(func() error {
		var config net.ListenConfig
		l, err = config.Listen(ctx, network, address)
		return err
	})
	return l, err
}

// DialContext connects from the host, as net.Dialer.DialContext does; it fits http.Transport. The address has to be an IP
// address with a port, since nothing on a host resolves names.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("connect from %s: %w", h.Name, err)
	}
	runtime.LockOSThread()
	back, err := spawn.Enter(h.Netns)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	left := false
	leave := func() error {
		if left {
			return nil
		}
		left = true
		err := back()
		if err == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with the goroutine
		}
		return err
	}
	// Once the socket is made it stays on the host, so that the thread need not wait for the connection.
	dialer := net.Dialer{Control: func(string, string, syscall.RawConn) error { return leave() }}
	conn, err := dialer.DialContext(ctx, network, address)
	if stayed := leave(); stayed != nil {
		return nil, errors.Join(err, stayed)
	}
	return conn, err // as it is: callers ask whether it is a timeout
}

// Disconnect takes the host off the segment, as if its cable were pulled. Connect brings it back.
func (h *Host) Disconnect(ctx context.Context) error {
	return spawn.IP(ctx, "", "link set "+h.veth+" down")
}

// Connect undoes Disconnect.
func (h *Host) Connect(ctx context.Context) error { return spawn.IP(ctx, "", "link set "+h.veth+" up") }

// FlushConntrack forgets every connection that the nodes and hosts of the lab track. What an earlier run left there makes
// early timeouts in the next.
func (l *Lab) FlushConntrack(ctx context.Context) error {
	var errs []error
	for _, node := range l.Nodes {
		_, err := node.Run(ctx, "conntrack", "-F")
		errs = append(errs, err)
	}
	for _, h := range l.hosts {
		_, err := h.Run(ctx, "conntrack", "-F")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
