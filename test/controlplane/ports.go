package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Ports are taken from below the range that kernels hand out to outgoing connections, so that a port stays free while
// the program that listens on it is stopped and started again, and from below the node ports, which tests close.
const (
	lowestPort  = 20000
	highestPort = 30000
)

// port is a free loopback port, reserved against other clusters by a lock on a file.
type port struct {
	number int
	lock   *os.File
}

func (p *port) String() string  { return strconv.Itoa(p.number) }
func (p *port) address() string { return net.JoinHostPort(loopback, p.String()) }

// release gives the port up.
func (p *port) release() {
	if p != nil && p.lock != nil {
		_ = p.lock.Close()
	}
}

// reservePort finds a port on which nobody listens and that no other cluster of this user has reserved.
func reservePort(ctx context.Context) (*port, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("safedrain-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for range 200 {
		p := &port{number: lowestPort + rand.IntN(highestPort-lowestPort)}
		f, err := os.OpenFile(filepath.Join(dir, p.String()), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		p.lock = f
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && listens(ctx, p.address()) {
			return p, nil
		}
		p.release()
	}
	return nil, errors.New("no free loopback port found")
}

// kept holds the ports of FreePort, whose locks would else be given up with them.
var kept sync.Map

// FreePort returns a loopback port for a program that a test starts: nobody listens on it, nothing outgoing gets it, and no
// other cluster or test of this user takes it until this process ends.
func FreePort(t testing.TB) int {
	t.Helper()
	p, err := reservePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kept.Store(p.number, p)
	return p.number
}

// listens reports whether one can listen on an address.
func listens(ctx context.Context, address string) bool {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return false
	}
	return l.Close() == nil
}
