package hooktest

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
)

// Network is a network in memory. An address on which something listens answers, one that is silent takes as long as the
// caller has patience, and every other refuses. In a bubble of testing/synctest patience costs no time.
type Network struct {
	mu     sync.Mutex
	doors  map[string]*door
	silent map[string]bool
}

// door is one listener.
type door struct {
	address string
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// Listen opens an address, such as 127.0.0.1:80.
func (n *Network) Listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.doors == nil {
		n.doors = map[string]*door{}
	}
	d := &door{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.doors[address] = d
	return d
}

// Silence makes an address silent.
func (n *Network) Silence(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent == nil {
		n.silent = map[string]bool{}
	}
	n.silent[address] = true
}

// DialContext connects to an address.
func (n *Network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	d, silent := n.doors[address], n.silent[address]
	n.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
	if d != nil {
		ours, theirs := net.Pipe()
		select {
		case d.conns <- theirs:
			return ours, nil
		case <-d.closed:
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
		}
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// Accept returns the next connection.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// Close makes the address refuse.
func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// Addr is the address.
func (d *door) Addr() net.Addr { return d }

// Network is that of the address.
func (d *door) Network() string { return "tcp" }

// String is the address.
func (d *door) String() string { return d.address }
