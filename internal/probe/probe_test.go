package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient are options for targets that answer, at once unless the machine is busy.
var patient = Options{Timeout: time.Minute, Rate: 1000, Concurrency: 8, Total: time.Hour}

// quick are options for targets that never answer, and for simulated time.
var quick = Options{Timeout: 300 * time.Millisecond, Rate: 1000, Concurrency: 8, Total: time.Minute}

// open listens on an address of loopback and accepts; port 0 takes a free one. It skips the test where the address is
// not there.
func open(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("no listener on %s: %v", address, err)
	}
	serve(t, l)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// serve accepts and closes connections until the test ends.
func serve(t *testing.T, l net.Listener) {
	t.Helper()
	ended := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
}

// silent listens and never accepts, behind a queue that is full: Linux drops further attempts to connect, as a firewall
// does.
func silent(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	at := netip.MustParseAddr(address)
	fd := socket(t)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: at.As4()}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	target := netip.AddrPortFrom(at, portOf(t, fd))
	// Nobody waits for these: what comes of them does not depend on how busy the machine is.
	for range 4 {
		if err := syscall.Connect(socket(t), &syscall.SockaddrInet4{Port: int(target.Port()), Addr: at.As4()}); err != nil && !errors.Is(err, syscall.EINPROGRESS) {
			t.Fatal(err)
		}
	}
	if conn, err := net.DialTimeout("tcp", target.String(), 200*time.Millisecond); err == nil {
		conn.Close()
		t.Skip("the queue of a listener does not fill up here")
	}
	return target
}

// socket is one that does not block.
func socket(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	return fd
}

func portOf(t *testing.T, fd int) uint16 {
	t.Helper()
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(bound.(*syscall.SockaddrInet4).Port)
}

// closed is a port of loopback on which nothing listens.
func closed(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("no listener on %s: %v", address, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// one probes a target on the machine's own network.
func one(t *testing.T, o Options, target Target) Seen {
	t.Helper()
	return oneBy(t, New(o), target)
}

func oneBy(t *testing.T, p *Prober, target Target) Seen {
	t.Helper()
	seen, err := p.Run(t.Context(), []Target{target})
	if err != nil {
		t.Fatal(err)
	}
	return seen[0]
}

func TestNodePort(t *testing.T) {
	for name, test := range map[string]struct {
		target func(*testing.T) netip.AddrPort
		want   guard.Answer
	}{
		"accepted":       {func(t *testing.T) netip.AddrPort { return open(t, "127.0.0.1:0") }, guard.AnswerOK},
		"accepted, IPv6": {func(t *testing.T) netip.AddrPort { return open(t, "[::1]:0") }, guard.AnswerOK},
		"refused":        {func(t *testing.T) netip.AddrPort { return closed(t, "127.0.0.1:0") }, guard.AnswerRefused},
		"refused, IPv6":  {func(t *testing.T) netip.AddrPort { return closed(t, "[::1]:0") }, guard.AnswerRefused},
		"silence":        {func(t *testing.T) netip.AddrPort { return silent(t, "127.0.0.1") }, guard.AnswerBlackhole},
	} {
		t.Run(name, func(t *testing.T) {
			o := patient
			if test.want == guard.AnswerBlackhole {
				o = quick
			}
			if got := one(t, o, Target{Address: test.target(t)}); got.Answer != test.want {
				t.Errorf("%+v, want %s", got, test.want)
			}
		})
	}
}

// TestNothingIsSent: a node port gets a connection, and not one byte.
func TestNothingIsSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan int, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			received <- -1
			return
		}
		defer conn.Close()
		n, _ := conn.Read(make([]byte, 1))
		received <- n
	}()
	if got := one(t, patient, Target{Address: l.Addr().(*net.TCPAddr).AddrPort()}); got.Answer != guard.AnswerOK {
		t.Fatalf("%+v", got)
	}
	if n := <-received; n != 0 {
		t.Errorf("the node port read %d bytes", n)
	}
}

// unreachableChild makes this test program, started again in a network namespace of its own, do the test.
const unreachableChild = "SAFEDRAIN_PROBE_UNREACHABLE"

func TestUnreachable(t *testing.T) {
	if os.Getenv(unreachableChild) == "" {
		cmd := exec.Command("unshare", "--map-root-user", "--net", os.Args[0], "-test.run=^TestUnreachable$", "-test.v")
		cmd.Env = append(os.Environ(), unreachableChild+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "--- FAIL") {
			t.Skipf("no network namespace here: %v\n%s", err, out)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS: TestUnreachable") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, command := range []string{"link set lo up", "address add 192.0.2.1/32 dev lo", "route add unreachable 198.51.100.1"} {
		if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
	}
	for address, want := range map[string]Seen{
		"203.0.113.1:30080":   {guard.AnswerUnreachable, "network is unreachable"},
		"[2001:db8::1]:30080": {guard.AnswerUnreachable, "network is unreachable"},
		"198.51.100.1:30080":  {guard.AnswerUnreachable, "no route to host"},
		"192.0.2.1:30080":     {guard.AnswerRefused, ""},
	} {
		for _, check := range []bool{false, true} {
			if got := one(t, patient, Target{Address: netip.MustParseAddrPort(address), HealthCheck: check}); got != want {
				t.Errorf("%s: %+v, want %+v", address, got, want)
			}
		}
	}
	v, err := Look(t.Context(), []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"192.0.2.1"}, texts(v.Own)); diff != "" {
		t.Errorf("own addresses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"192.0.2.1"}, texts(v.Sources)); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func texts(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

func TestFailed(t *testing.T) {
	op := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	for name, test := range map[string]struct {
		err  error
		want Seen
	}{
		"refused":              {op(syscall.ECONNREFUSED), Seen{guard.AnswerRefused, ""}},
		"reset":                {op(syscall.ECONNRESET), Seen{guard.AnswerRefused, ""}},
		"no route":             {op(syscall.EHOSTUNREACH), Seen{guard.AnswerUnreachable, "no route to host"}},
		"the system's timeout": {op(syscall.ETIMEDOUT), Seen{guard.AnswerBlackhole, ""}},
		"our timeout":          {fmt.Errorf("dial: %w", context.DeadlineExceeded), Seen{guard.AnswerBlackhole, ""}},
		"a firewall here":      {op(syscall.EPERM), Seen{"", "the probe failed here: operation not permitted"}},
		"no descriptors":       {op(syscall.EMFILE), Seen{"", "the probe failed here: too many open files"}},
		"no port left":         {op(syscall.EADDRNOTAVAIL), Seen{"", "the probe failed here: cannot assign requested address"}},
		"something else":       {errors.New("odd"), Seen{"", "the probe failed here: odd"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := failed(test.err); got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

func TestHealthCheck(t *testing.T) {
	const hang, cut, garbage = "hang", "cut", "garbage"
	for name, test := range map[string]struct {
		answer string // code and body, or one of the above
		want   Seen
	}{
		"passing":              {`200 {"service":{"namespace":"w","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":true}`, Seen{guard.AnswerHealthy, "says 200"}},
		"failing":              {`503 {"service":{"namespace":"w","name":"lb"},"localEndpoints":0,"serviceProxyHealthy":true}`, Seen{guard.AnswerUnhealthy, "says 503"}},
		"a sick proxy":         {`503 {"service":{"namespace":"w","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":false}`, Seen{guard.AnswerUnhealthy, "says 503, and that its proxy is not healthy"}},
		"another Service":      {`200 {"service":{"namespace":"w","name":"x"},"localEndpoints":1}`, Seen{guard.AnswerStrange, "answers for w/x"}},
		"a web server":         {`200 <html>`, Seen{guard.AnswerStrange, "says 200 without naming the Service"}},
		"not found":            {`404 `, Seen{guard.AnswerStrange, "says 404"}},
		"a redirect":           {`302 `, Seen{guard.AnswerStrange, "says 302"}},
		"accepted, then quiet": {hang, Seen{guard.AnswerBlackhole, "accepts the connection and does not answer"}},
		"broken off":           {cut, Seen{guard.AnswerStrange, "does not answer as a health check port does"}},
		"no HTTP":              {garbage, Seen{guard.AnswerStrange, "does not answer as a health check port does"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var network hooktest.Network
				done := make(chan struct{})
				l := network.Listen("192.0.2.1:30500")
				server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/healthz" {
						t.Errorf("asked for %s", r.URL.Path)
					}
					switch test.answer {
					case hang:
						<-done
					case cut, garbage:
						conn, _, err := w.(http.Hijacker).Hijack()
						if err != nil {
							t.Error(err)
							return
						}
						if test.answer == garbage {
							fmt.Fprint(conn, "SSH-2.0-x\r\n")
						}
						conn.Close()
					default:
						var code int
						fmt.Sscan(test.answer, &code)
						w.Header().Set("Location", "/elsewhere")
						w.WriteHeader(code)
						fmt.Fprint(w, test.answer[4:])
					}
				})}
				served := make(chan struct{})
				go func() { server.Serve(l); close(served) }()
				defer func() { close(done); server.Close(); <-served }()
				got := oneBy(t, newProber(quick, network.DialContext), Target{Service: guard.Key{Namespace: "w", Name: "lb"}, Address: netip.MustParseAddrPort(l.Addr().String()), HealthCheck: true})
				if got != test.want {
					t.Errorf("%+v, want %+v", got, test.want)
				}
			})
		})
	}
	t.Run("refused", func(t *testing.T) {
		if got := one(t, patient, Target{Address: closed(t, "127.0.0.1:0"), HealthCheck: true}); got.Answer != guard.AnswerRefused {
			t.Errorf("%+v", got)
		}
	})
	t.Run("silence", func(t *testing.T) {
		if got := one(t, quick, Target{Address: silent(t, "127.0.0.1"), HealthCheck: true}); got != (Seen{guard.AnswerBlackhole, ""}) {
			t.Errorf("%+v", got)
		}
	})
}

// What bounds the probes, in simulated time.
func TestBounds(t *testing.T) {
	open, silent := netip.MustParseAddrPort("192.0.2.1:30080"), netip.MustParseAddrPort("192.0.2.2:30080")
	ok, quiet, notBegun := Seen{Answer: guard.AnswerOK}, Seen{Answer: guard.AnswerBlackhole}, Seen{Detail: timeUp}
	for name, test := range map[string]struct {
		change func(*Options)
		n      int
		at     netip.AddrPort
		health bool
		want   map[Seen]int
		took   time.Duration
	}{
		"rate":        {func(o *Options) { o.Rate = 20 }, 6, open, false, map[Seen]int{ok: 6}, 250 * time.Millisecond},
		"concurrency": {func(o *Options) { o.Concurrency, o.Timeout = 2, 200*time.Millisecond }, 6, silent, false, map[Seen]int{quiet: 6}, 600 * time.Millisecond},
		"total":       {func(o *Options) { o.Rate, o.Total = 10, 350*time.Millisecond }, 20, open, false, map[Seen]int{ok: 4, notBegun: 16}, 300 * time.Millisecond},
		"a slow probe may end after the total": {
			func(o *Options) { o.Total, o.Timeout = 50*time.Millisecond, 300*time.Millisecond }, 1, silent, false, map[Seen]int{quiet: 1}, 300 * time.Millisecond,
		},
		"a health check port that is silent leaves nothing behind": {func(*Options) {}, 8, silent, true, map[Seen]int{quiet: 8}, 310 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := quick
				test.change(&o)
				begun := time.Now()
				seen, err := bounded(t, o).Run(t.Context(), slices.Repeat([]Target{{Address: test.at, HealthCheck: test.health}}, test.n))
				if err != nil {
					t.Fatal(err)
				}
				got := map[Seen]int{}
				for _, s := range seen {
					got[s]++
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if took := time.Since(begun).Round(10 * time.Millisecond); took != test.took {
					t.Errorf("took %s, want %s", took, test.took)
				}
			})
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			o := quick
			o.Timeout = time.Hour
			ctx, cancel := context.WithCancel(t.Context())
			begun := time.Now()
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err := bounded(t, o).Run(ctx, slices.Repeat([]Target{{Address: silent}}, 50))
			if took := time.Since(begun); !errors.Is(err, context.Canceled) || took != 50*time.Millisecond {
				t.Errorf("error %v after %s, want the end of the context", err, took)
			}
		})
	})
}

// bounded probes a network in which 192.0.2.1 accepts and 192.0.2.2 is silent.
func bounded(t *testing.T, o Options) *Prober {
	t.Helper()
	var network hooktest.Network
	serve(t, network.Listen("192.0.2.1:30080"))
	network.Silence("192.0.2.2:30080")
	return newProber(o, network.DialContext)
}
