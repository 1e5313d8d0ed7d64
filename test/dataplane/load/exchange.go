package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// answerLimit is how long an answer may be.
const answerLimit = 4096

// answer is what a pod says of itself and of what it saw.
type answer struct {
	Pod    string `json:"pod"`
	Node   string `json:"node"`
	Client string `json:"client"` // address, or address and port

	client netip.Addr
	last   bool // the other side closes the connection after it
}

// errLate is the end of a request that could not be sent in its time.
var errLate = errors.New("not sent in its time: the generator is overloaded")

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, answerLimit) }}

// dial opens a connection for a request that has to be answered by a deadline. The source is that of a connection that
// was never there, too: by it the packets of a failure are found.
func dial(ctx context.Context, address netip.AddrPort, deadline time.Time) (conn net.Conn, source netip.AddrPort, err error) {
	if !time.Now().Before(deadline) {
		return nil, source, errLate
	}
	w := witness{fd: -1}
	defer w.close()
	dialer := net.Dialer{Deadline: deadline, KeepAlive: -1, Control: w.control}
	if conn, err = dialer.DialContext(ctx, "tcp", address.String()); err != nil {
		return nil, w.source(), err
	}
	if local, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		source = local.AddrPort()
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, source, errors.Join(err, conn.Close())
	}
	return conn, source, nil
}

// exchange sends a request and reads its answer. last asks the other side to close the connection afterwards.
func exchange(conn net.Conn, reader *bufio.Reader, host string, last bool) (answer, error) {
	connection := "keep-alive"
	if last {
		connection = "close"
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: "+connection+"\r\n\r\n"); err != nil {
		return answer{}, err
	}
	if _, err := reader.Peek(1); err != nil {
		return answer{}, err // io.EOF here is an end before any answer
	}
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	err = errors.Join(err, resp.Body.Close())
	if err != nil {
		return answer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("status %d", resp.StatusCode)
	}
	a, err := parse(body)
	a.last = resp.Close
	return a, err
}

// parse reads the body of an answer.
func parse(body []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("answer %q: %w", body, err)
	}
	client, err := netip.ParseAddr(a.Client)
	if err != nil {
		pair, pairErr := netip.ParseAddrPort(a.Client)
		if pairErr != nil {
			return a, fmt.Errorf("answer %q: client: %w", body, err)
		}
		client = pair.Addr()
	}
	a.client = client.Unmap().WithZone("")
	return a, nil
}

// once makes a request on a connection of its own.
func once(ctx context.Context, t Target, o *outcome, deadline time.Time) {
	conn, source, err := dial(ctx, t.Address, deadline)
	o.source = source
	if err != nil {
		o.err = err
		return
	}
	o.open = true
	reader, _ := readers.Get().(*bufio.Reader)
	reader.Reset(conn)
	o.expected = t.expected(conn)
	o.answer, o.err = exchange(conn, reader, t.Address.String(), true)
	o.latency = time.Since(o.at)
	if o.err == nil {
		_, _ = reader.Discard(1) // the other side closes first, as it was asked to
		leaveNothing(conn)
	}
	_ = conn.Close()
	readers.Put(reader)
}

// leaveNothing makes the end of a connection that both sides are done with a reset, so that neither of them remembers it. A
// pod that does for a minute takes for old what comes from the same port by another of its addresses: it answers with an
// acknowledgement, and only once a reset has arrived does the next try find it listening; where the machine is so busy that
// the try overtakes the reset, the one after it comes too late.
func leaveNothing(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // if it fails the end is as any other
	}
}

// expected is the address that the pod has to see.
func (t Target) expected(conn net.Conn) netip.Addr {
	if t.Source.IsValid() {
		return t.Source.Unmap().WithZone("")
	}
	if local, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		return local.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
