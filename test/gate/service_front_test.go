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
// moment ago. It looks at their readiness as kubelets and endpoints do, only faster.
type front struct {
	listener net.Listener
	cancel   context.CancelFunc
	done     sync.WaitGroup

	mu       sync.Mutex
	backends map[string]string // by the address of a replica, where its readiness is
	ready    []string
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
	f := &front{listener: l, cancel: cancel, backends: map[string]string{}}
	f.done.Go(func() { f.accept() })
	f.done.Go(func() { f.look(ctx) })
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
	defer f.mu.Unlock()
	f.backends[address] = readiness
}

func (f *front) remove(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.backends, address)
}

// look keeps the list of those that are ready.
func (f *front) look(ctx context.Context) {
	client := &http.Client{Timeout: time.Second}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		f.mu.Lock()
		backends := map[string]string{}
		for address, readiness := range f.backends {
			backends[address] = readiness
		}
		f.mu.Unlock()
		var ready []string
		for address, readiness := range backends {
			if answers(ctx, client, readiness) {
				ready = append(ready, address)
			}
		}
		f.mu.Lock()
		f.ready = ready
		f.mu.Unlock()
		select {
		case <-ctx.Done():
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
	f.mu.Lock()
	if len(f.ready) == 0 {
		f.mu.Unlock()
		return
	}
	to := f.ready[rand.IntN(len(f.ready))]
	f.mu.Unlock()
	back, err := net.DialTimeout("tcp", to, time.Second)
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

// freePort is a port of loopback that nobody listens on.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
