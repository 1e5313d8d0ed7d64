package load

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// keptInterval is the time between two requests on a kept connection.
const keptInterval = time.Second

// kept is a connection that is kept over many requests, and made anew when it is lost.
type kept struct {
	target   Target
	conn     net.Conn // nil when there is none
	reader   *bufio.Reader
	answered bool
	source   netip.AddrPort
	expected netip.Addr
}

// ask makes one request. Where the other side has ended the connection in order, which it may do between two requests, a
// new one is opened and the request made there, as every HTTP client does.
func (k *kept) ask(ctx context.Context, o *outcome, deadline time.Time) {
	if k.conn != nil {
		k.look(o)
	}
	for {
		reused := k.conn != nil
		o.err = k.open(ctx, deadline)
		o.source = k.source
		if o.err != nil {
			return
		}
		o.open, o.expected = true, k.expected
		o.answer, o.err = exchange(k.conn, k.reader, k.target.Address.String(), false)
		switch {
		case o.err == nil && !o.answer.last:
			k.answered = true
			return
		case o.err == nil:
			o.closed++
			k.close()
			return
		case reused && endedInOrder(o.err):
			o.closed++
			k.close()
			continue // on a new connection, so at most once
		}
		o.broken = o.broken || k.answered
		k.close()
		return
	}
}

// open makes sure that there is a connection, with the deadline of this request.
func (k *kept) open(ctx context.Context, deadline time.Time) error {
	if k.conn != nil {
		return k.conn.SetDeadline(deadline)
	}
	conn, source, err := dial(ctx, k.target.Address, deadline)
	k.source = source
	if err != nil {
		return err
	}
	k.conn, k.answered, k.expected = conn, false, k.target.expected(conn)
	k.reader = bufio.NewReaderSize(conn, answerLimit)
	return nil
}

// look finds out whether the connection has ended since its last answer.
func (k *kept) look(o *outcome) {
	switch err := idle(k.conn); {
	case err == nil:
		return
	case endedInOrder(err):
		o.closed++
	default:
		o.broken = true
	}
	k.close()
}

func (k *kept) close() {
	if k.conn != nil {
		_ = k.conn.Close()
		k.conn = nil
	}
}

// endedInOrder tells an orderly end of a connection from a broken one. Linux reports a reset as EPIPE where the other side
// had closed before, and as ECONNRESET where it had not.
func endedInOrder(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE)
}

// idle looks at a connection without waiting: nil when it is open and silent, io.EOF when the other side has closed it.
func idle(conn net.Conn) error {
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	var state error
	err = control.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		case err != nil:
			state = err
		case n == 0:
			state = io.EOF
		default:
			state = errors.New("an answer that nobody asked for")
		}
		return true
	})
	return errors.Join(err, state)
}
