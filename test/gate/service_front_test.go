package gate

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// front is one address before several replicas, as a Service is: each new connection goes to one of those that were ready a
// moment ago. It looks at the readiness of each as kubelets and endpoints do, only faster.
type front struct {
	listener net.Listener
	ctx      context.Context //nolint:containedctx // of all that is looked at
	cancel   context.CancelFunc
	done     sync.WaitGroup

	mu    sync.Mutex
	ready map[string]bool // by the address of a replica, from add to remove
}

// lookEvery is the period of readiness probes.
const lookEvery = 100 * time.Millisecond

func newFront(t testing.TB) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &front{listener: l, ctx: ctx, cancel: cancel, ready: map[string]bool{}}
	f.done.Go(func() { f.accept() })
	return f
}

func (f *front) port() int { return f.listener.Addr().(*net.TCPAddr).Port }

func (f *front) close() {
	f.cancel()
	_ = f.listener.Close()
	f.done.Wait()
}

func (f *front) add(address, readiness string) {
	f.mu.Lock()
	f.ready[address] = false
	f.mu.Unlock()
	f.done.Go(func() { f.look(address, readiness) })
}

func (f *front) remove(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ready, address)
}

// look notes whether a replica is ready, until it is removed.
func (f *front) look(address, readiness string) {
	client := &http.Client{Timeout: 10 * time.Second}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		ready := answers(f.ctx, client, readiness)
		f.mu.Lock()
		_, stays := f.ready[address]
		if stays {
			f.ready[address] = ready
		}
		f.mu.Unlock()
		if !stays {
			return
		}
		select {
		case <-f.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func answers(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

func (f *front) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		go f.forward(conn)
	}
}

// forward joins a connection to one of a replica until either side ends it.
func (f *front) forward(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var ready []string
	f.mu.Lock()
	for address, is := range f.ready {
		if is {
			ready = append(ready, address)
		}
	}
	f.mu.Unlock()
	if len(ready) == 0 {
		return
	}
	back, err := net.DialTimeout("tcp", ready[rand.IntN(len(ready))], 10*time.Second)
	if err != nil {
		return
	}
	defer func() { _ = back.Close() }()
	var both sync.WaitGroup
	copyTo := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		if c, ok := dst.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	}
	both.Go(func() { copyTo(back, conn) })
	both.Go(func() { copyTo(conn, back) })
	both.Wait()
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
