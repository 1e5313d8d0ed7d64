package load

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// witness keeps a socket open until its address was read: the kernel chooses the port of a connection, and forgets it with
// the socket of one that failed.
type witness struct{ fd int }

// control takes hold of the socket of a [net.Dialer], before it connects.
func (w *witness) control(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		w.close() // of an attempt before
		if held, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			w.fd = held
		}
	})
}

// source is the address of the socket; not valid where there is none.
func (w *witness) source() netip.AddrPort {
	if w.fd < 0 {
		return netip.AddrPort{}
	}
	name, err := unix.Getsockname(w.fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

func (w *witness) close() {
	if w.fd >= 0 {
		_ = unix.Close(w.fd)
		w.fd = -1
	}
}
