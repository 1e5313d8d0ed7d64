package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/dataplane/pressure"
)

// server is a pod whose behaviour is told by a function of the number of the connection.
type server struct {
	address netip.AddrPort
	conns   atomic.Int64
}

// behaviour is what a server does with a connection once its first request is read.
type behaviour func(s *server, conn net.Conn, reader *bufio.Reader)

func serve(t *testing.T, network, address string, choose func(n int64) behaviour) *server {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), network, address)
	if err != nil {
		t.Skipf("no %s here: %v", network, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address %v", l.Addr())
	}
	s := &server{address: tcp.AddrPort()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			do := choose(s.conns.Add(1))
			go func() {
				defer func() { _ = conn.Close() }()
				do(s, conn, bufio.NewReader(conn))
			}()
		}
	}()
	return s
}

func reply(conn net.Conn, reader *bufio.Reader, status int) bool {
	req, err := http.ReadRequest(reader)
	if err != nil {
		return false
	}
	body := fmt.Sprintf(`{"pod":"web-1","node":"node-1","client":%q}`, conn.RemoteAddr())
	connection := "keep-alive"
	if req.Close {
		connection = "close"
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 %d x\r\nConnection: %s\r\nContent-Length: %d\r\n\r\n%s", status, connection, len(body), body)
	return err == nil && !req.Close
}

// The behaviours. serving answers until the other side closes.
func serving(_ *server, conn net.Conn, reader *bufio.Reader) {
	for reply(conn, reader, http.StatusOK) {
	}
}

func silent(_ *server, _ net.Conn, reader *bufio.Reader) { _, _ = reader.ReadString(0) }

func resetting(_ *server, conn net.Conn, reader *bufio.Reader) {
	_, _ = http.ReadRequest(reader)
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

func hangingUp(_ *server, _ net.Conn, reader *bufio.Reader) { _, _ = http.ReadRequest(reader) }

func failing(_ *server, conn net.Conn, reader *bufio.Reader) {
	for reply(conn, reader, http.StatusServiceUnavailable) {
	}
}

func always(b behaviour) func(int64) behaviour { return func(int64) behaviour { return b } }

// run sends load and checks what has to be true of every run.
func run(t *testing.T, config Config) (Summary, []Line) {
	t.Helper()
	var out bytes.Buffer
	summaries, err := Run(t.Context(), config, &out)
	if err != nil {
		t.Fatal(err)
	}
	return summaries[0], check(t, summaries, &out)
}

// check compares the lines with the summaries: seconds in order and adding up, a failure line for each failed request.
func check(t *testing.T, summaries []Summary, out *bytes.Buffer) []Line {
	t.Helper()
	var lines []Line
	sums, next, failures := map[string]Counts{}, map[string]int{}, map[string]int{}
	err := Decode(out, func(l Line) error {
		lines = append(lines, l)
		switch {
		case l.Second != nil:
			if l.Second.Index != next[l.Second.Target] {
				t.Errorf("second %d of %s after %d", l.Second.Index, l.Second.Target, next[l.Second.Target]-1)
			}
			next[l.Second.Target]++
			c := sums[l.Second.Target]
			for _, counts := range []Counts{l.Second.New, l.Second.Kept} {
				if counts.Ended() != counts.Scheduled {
					t.Errorf("second %d: %+v does not add up", l.Second.Index, counts)
				}
				c.Add(counts)
			}
			sums[l.Second.Target] = c
		case l.Failure != nil:
			failures[l.Failure.Target]++
			if late := l.Failure.Error == errLate.Error(); (l.Failure.Source.Port() == 0) != late {
				t.Errorf("the connection of a failure came from %s: %s", l.Failure.Source, l.Failure.Error)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range summaries {
		all := s.New
		all.Add(s.Kept)
		if sums[s.Target.Name] != all || all.Ended() != all.Scheduled {
			t.Errorf("%s: seconds add up to %+v, the summary says %+v", s.Target.Name, sums[s.Target.Name], all)
		}
		if failures[s.Target.Name] != all.Failed() {
			t.Errorf("%s: %d lines of failures for %d failures", s.Target.Name, failures[s.Target.Name], all.Failed())
		}
	}
	return lines
}

func TestEveryRequestEndsInOneClass(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		choose func(int64) behaviour
		want   func(Counts) int
		reason string
	}{
		"serving":   {always(serving), func(c Counts) int { return c.OK }, "an answer is ok"},
		"silent":    {always(silent), func(c Counts) int { return c.Timeout }, "no answer is a timeout"},
		"resetting": {always(resetting), func(c Counts) int { return c.Cut }, "a reset of an open connection cuts it"},
		"hangingUp": {always(hangingUp), func(c Counts) int { return c.Cut }, "so does an end before the answer"},
		"failing":   {always(failing), func(c Counts) int { return c.Other }, "a status of 503 is other"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "tcp4", "127.0.0.1:0", tt.choose)
			got, _ := run(t, Config{
				Targets: []Target{{Name: "a", Address: s.address, Rate: 100}}, Duration: 1500 * time.Millisecond, Timeout: 300 * time.Millisecond,
			})
			if got.New.Scheduled != 150 || tt.want(got.New) != 150 {
				t.Errorf("%s: %+v", tt.reason, got.New)
			}
			if (got.New.Failed() > 0) == got.First.IsZero() {
				t.Errorf("first failure %v with %d failed", got.First, got.New.Failed())
			}
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(l.Addr().String())
	_ = l.Close()
	got, _ := run(t, Config{Targets: []Target{{Name: "a", Address: address, Rate: 50, Kept: 5}}, Duration: time.Second})
	if got.New.Refused != 50 || got.Kept.Refused != 5 {
		t.Errorf("%+v %+v", got.New, got.Kept)
	}
}

func TestMixtureIsCountedExactly(t *testing.T) {
	t.Parallel()
	turns := []behaviour{serving, silent, resetting, failing}
	s := serve(t, "tcp4", "127.0.0.1:0", func(n int64) behaviour { return turns[n%4] })
	got, _ := run(t, Config{
		Targets: []Target{{Name: "a", Address: s.address, Rate: 200}}, Duration: 2 * time.Second, Timeout: 400 * time.Millisecond,
	})
	if want := (Counts{Scheduled: 400, OK: 100, Timeout: 100, Cut: 100, Other: 100}); got.New != want {
		t.Errorf("%+v, want %+v", got.New, want)
	}
}

func TestLoadDoesNotWaitForAnswers(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp4", "127.0.0.1:0", always(silent))
	got, _ := run(t, Config{
		Targets: []Target{{Name: "a", Address: s.address, Rate: 100}}, Duration: time.Second, Timeout: 2 * time.Second,
	})
	if s.conns.Load() != 100 || got.New.Timeout != 100 {
		t.Errorf("%d connections, %+v", s.conns.Load(), got.New)
	}
	if took := got.Ended.Sub(got.Started); took < 2900*time.Millisecond || took > 5*time.Second && !pressure.Busy() {
		t.Errorf("took %s: one second of schedule and two of waiting are expected", took)
	}
}

func TestLatencyCountsFromTheSchedule(t *testing.T) {
	t.Parallel()
	slow := func(s *server, conn net.Conn, reader *bufio.Reader) {
		_, _ = reader.Peek(1)
		<-time.After(200 * time.Millisecond)
		serving(s, conn, reader)
	}
	s := serve(t, "tcp4", "127.0.0.1:0", always(slow))
	got, _ := run(t, Config{Targets: []Target{{Name: "a", Address: s.address, Rate: 50}}, Duration: time.Second})
	if l := got.Latency; l.P50 < 200 || l.Max < l.P99 || l.P99 < l.P50 {
		t.Errorf("latency %+v of answers that take 200 ms", l)
	}
}

func TestSourceAddress(t *testing.T) {
	t.Parallel()
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		s := serve(t, network, address, always(serving))
		for _, tt := range []struct {
			source    netip.Addr
			preserved int
		}{{netip.Addr{}, 25}, {s.address.Addr(), 25}, {netip.MustParseAddr("192.0.2.1"), 0}} {
			got, _ := run(t, Config{
				Targets:  []Target{{Name: "a", Address: s.address, Rate: 50, Source: tt.source}},
				Duration: 500 * time.Millisecond,
			})
			if got.Preserved != tt.preserved || got.Translated != 25-tt.preserved || got.Nodes["node-1"] != 25 || got.Pods["web-1"] != 25 {
				t.Errorf("%s, expected source %s: %+v", network, tt.source, got.Traffic)
			}
		}
	}
}

func TestKeptConnections(t *testing.T) {
	t.Parallel()
	twice := func(end behaviour) func(int64) behaviour {
		return func(n int64) behaviour {
			if n > 10 { // those that come in place of the first ten
				return serving
			}
			return func(s *server, conn net.Conn, reader *bufio.Reader) {
				if reply(conn, reader, http.StatusOK) {
					end(s, conn, reader)
				}
			}
		}
	}
	tests := map[string]struct {
		choose         func(int64) behaviour
		broken, closed int
		failed         int
		reason         string
	}{
		"kept":            {always(serving), 0, 0, 0, "nothing happens to them"},
		"closed":          {twice(func(*server, net.Conn, *bufio.Reader) {}), 0, 10, 0, "closed while idle: no request is lost"},
		"closed on reuse": {twice(hangingUp), 0, 10, 0, "closed while the request was on its way: made again, as clients do"},
		"reset":           {twice(resetting), 10, 0, 10, "a reset of a request is lost and breaks the connection"},
		"silent":          {twice(silent), 10, 0, 10, "no answer breaks the connection"},
		"reset while idle": {twice(func(_ *server, conn net.Conn, _ *bufio.Reader) {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}), 10, 0, 0, "a reset while idle breaks the connection, and no request is lost"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "tcp4", "127.0.0.1:0", tt.choose)
			got, _ := run(t, Config{
				Targets: []Target{{Name: "a", Address: s.address, Kept: 10}}, Duration: 3 * time.Second, Timeout: 500 * time.Millisecond,
			})
			if got.Broken != tt.broken || got.Closed != tt.closed || got.Kept.Failed() != tt.failed || got.Kept.Scheduled != 30 {
				t.Errorf("%s: broken %d, closed %d, %+v", tt.reason, got.Broken, got.Closed, got.Kept)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp4", "127.0.0.1:0", always(silent))
	target := Target{Name: "a", Address: s.address, Rate: 1000}
	t.Run("limit", func(t *testing.T) {
		t.Parallel()
		got, _ := run(t, Config{Targets: []Target{target}, Duration: time.Minute, Limit: 100, Timeout: 100 * time.Millisecond})
		if got.New.Scheduled != 100 {
			t.Errorf("%d scheduled with a limit of 100", got.New.Scheduled)
		}
	})
	t.Run("in flight", func(t *testing.T) {
		t.Parallel()
		got, _ := run(t, Config{Targets: []Target{target}, Duration: time.Second, InFlight: 10, Timeout: 5 * time.Second})
		if got.New.Timeout != 10 || got.New.Other != got.New.Scheduled-10 {
			t.Errorf("ten may wait: %+v", got.New)
		}
	})
	t.Run("end", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var out bytes.Buffer
		summaries, err := Run(ctx, Config{Targets: []Target{target}, Duration: time.Minute, Timeout: 100 * time.Millisecond}, &out)
		if err != nil {
			t.Fatal(err)
		}
		check(t, summaries, &out)
		if n := summaries[0].New.Scheduled; n < 900 || n > 1100 {
			t.Errorf("%d scheduled until an end after a second, at 1000 a second", n)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := Target{Name: "a", Address: netip.MustParseAddrPort("127.0.0.1:1"), Rate: 1, Kept: 1}
	tests := map[string]Config{
		"no target":       {Duration: time.Second},
		"no duration":     {Targets: []Target{good}},
		"twice":           {Targets: []Target{good, good}, Duration: time.Second},
		"no name":         {Targets: []Target{{Address: good.Address, Rate: 1}}, Duration: time.Second},
		"no address":      {Targets: []Target{{Name: "a", Rate: 1}}, Duration: time.Second},
		"nothing to send": {Targets: []Target{{Name: "a", Address: good.Address}}, Duration: time.Second},
		"too much":        {Targets: []Target{{Name: "a", Address: good.Address, Rate: 1e9}}, Duration: time.Second},
		"timeout of kept": {Targets: []Target{good}, Duration: time.Second, Timeout: time.Second},
	}
	for name, config := range tests {
		if _, err := Run(t.Context(), config, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp4", "127.0.0.1:0", always(serving))
	args, err := Args(Config{
		Targets:  []Target{{Name: "a", Address: s.address, Rate: 50}, {Name: "b", Address: s.address, Rate: 50, Kept: 5}},
		Duration: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	var out, messages bytes.Buffer
	if err := Command(t.Context(), args, &out, &messages); err != nil {
		t.Fatal(err, messages.String())
	}
	got := map[string]int{}
	if err := Decode(&out, func(l Line) error {
		if l.Summary != nil {
			got[l.Summary.Target.Name] = l.Summary.New.OK + l.Summary.Kept.OK
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got["a"] != 50 || got["b"] != 55 {
		t.Errorf("ok by target: %v", got)
	}
	for _, bad := range [][]string{{"--target=x"}, {"--duration=1s"}, {"stray"}} {
		if err := Command(t.Context(), bad, &out, &messages); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}

func TestWriteErrorIsReported(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp4", "127.0.0.1:0", always(serving))
	_, err := Run(t.Context(), Config{Targets: []Target{{Name: "a", Address: s.address, Rate: 10}}, Duration: time.Second}, brokenPipe{})
	if !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
}

var errBroken = errors.New("broken")

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }
