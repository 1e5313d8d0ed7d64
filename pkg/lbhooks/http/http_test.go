package httphook

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// What the server answers, and what it is taken for. Doubt is never a proof.
func TestProve(t *testing.T) {
	five := 5 * time.Second
	for name, test := range map[string]struct {
		answer      func(http.ResponseWriter, *http.Request)
		want        lbhooks.Proof
		says        string
		unavailable bool
	}{
		"out":               {answer: body(head + `"out":true,"evidence":"is MAINT","by":"n2","settle":"5s"}`), want: lbhooks.Proof{Out: true, Evidence: "is MAINT", By: "n2", Settle: &five}},
		"still in":          {answer: body(head + `"out":false,"evidence":"is UP"}`), want: lbhooks.Proof{Evidence: "is UP"}},
		"still in, idle":    {answer: body(head + `"out":false,"idle":true,"evidence":"is DOWN"}`), want: lbhooks.Proof{Idle: true, Evidence: "is DOWN"}},
		"out and idle":      {answer: body(head + `"out":true,"idle":true,"evidence":"is DOWN"}`), says: "says out and idle"},
		"an empty 200":      {answer: status(200), says: "no HookAnswer"},
		"a web page":        {answer: body("<html>fine</html>"), says: "no HookAnswer"},
		"no out":            {answer: body(head + `"evidence":"is MAINT"}`), says: "does not say out"},
		"no evidence":       {answer: body(head + `"out":true,"evidence":" "}`), says: "no evidence"},
		"a field unknown":   {answer: body(head + `"out":true,"evidence":"x","stettle":"5s"}`), says: `unknown field "stettle"`},
		"two documents":     {answer: body(answers[hooktest.In] + answers[hooktest.Out]), says: "more than one document"},
		"another kind":      {answer: body(`{"apiVersion":"v1","kind":"Status","out":true}`), says: "want safedrain.dev/v1alpha1 HookAnswer"},
		"too long":          {answer: body(head + `"out":true,"evidence":"` + strings.Repeat("x", protocol.MaxAnswer) + `"}`), says: "longer than 65536 bytes"},
		"bad request":       {answer: status(400), says: "400 Bad Request"},
		"conflict":          {answer: status(409), says: "409 Conflict"},
		"no credentials":    {answer: status(401), says: "check the token", unavailable: true},
		"forbidden":         {answer: status(403), says: "check the token", unavailable: true},
		"not there":         {answer: status(404), says: "check the url", unavailable: true},
		"not implemented":   {answer: status(501), says: "check the url", unavailable: true},
		"redirect to GET":   {answer: status(302, "Location", "/other"), says: "turns POST into GET"},
		"redirect away":     {answer: status(307, "Location", "https://192.0.2.1/lb"), says: "redirects to https://192.0.2.1, which is not followed"},
		"redirect to plain": {answer: func(w http.ResponseWriter, r *http.Request) { status(308, "Location", "http://"+r.Host+"/lb")(w, r) }, says: "not followed"},
		"redirect at home":  {answer: status(307, "Location", "/elsewhere"), want: lbhooks.Proof{Evidence: "n1 is up"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			s.next(test.answer)
			got, err := s.hook(t).Prove(t.Context(), target())
			if test.says == "" {
				if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
					t.Errorf("%v, -want +got\n%s", err, diff)
				}
				return
			}
			if err == nil || got.Out || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v, %v; want an error with %q", got, err, test.says)
			}
			if errors.Is(err, lbhooks.ErrUnavailable) != test.unavailable {
				t.Errorf("%v: cannot work: want %t", err, test.unavailable)
			}
			if n := len(s.seen()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// Failures that pass are repeated with the same body and key; the number is bounded, and Retry-After is obeyed.
func TestRetries(t *testing.T) {
	for name, test := range map[string]struct {
		answers []func(http.ResponseWriter, *http.Request)
		options []string
		calls   int
		atLeast time.Duration
		says    string
	}{
		"503, then fine":      {answers: []func(http.ResponseWriter, *http.Request){status(503), status(500)}, calls: 3},
		"429, Retry-After":    {answers: []func(http.ResponseWriter, *http.Request){status(429, "Retry-After", "1")}, calls: 2, atLeast: time.Second},
		"a connection cut":    {answers: []func(http.ResponseWriter, *http.Request){func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }}, calls: 2},
		"for ever":            {answers: []func(http.ResponseWriter, *http.Request){status(503), status(503), status(503), status(503), status(503)}, calls: 4, says: "503 Service Unavailable"},
		"never":               {answers: []func(http.ResponseWriter, *http.Request){status(503)}, options: []string{"retries", "0"}, calls: 1, says: "503"},
		"later than there is": {answers: []func(http.ResponseWriter, *http.Request){status(503, "Retry-After", "3600")}, calls: 1, says: "503"},
		"later, as a date":    {answers: []func(http.ResponseWriter, *http.Request){status(429, "Retry-After", "Fri, 31 Dec 2199 23:59:59 GMT")}, calls: 1, says: "429"},
		"400 is not repeated": {answers: []func(http.ResponseWriter, *http.Request){status(400)}, calls: 1, says: "400"},
		"a refusal, with text": {answers: []func(http.ResponseWriter, *http.Request){func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "pool edge\nis locked", http.StatusConflict)
		}}, calls: 1, says: "409 Conflict: pool edge is locked"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			s.next(test.answers...)
			began := time.Now()
			err := s.hook(t, append([]string{"timeout", "2m"}, test.options...)...).Withdraw(t.Context(), target())
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
			if took := time.Since(began); took < test.atLeast || took > test.atLeast+time.Minute {
				t.Errorf("took %s", took)
			}
			calls := s.seen()
			if len(calls) != test.calls {
				t.Fatalf("%d requests, want %d", len(calls), test.calls)
			}
			for _, c := range calls {
				if diff := cmp.Diff(calls[0].request, c.request); diff != "" || c.header.Get("Idempotency-Key") != calls[0].request.Key || c.request.Key == "" {
					t.Errorf("key %q, -first +this\n%s", c.header.Get("Idempotency-Key"), diff)
				}
			}
		})
	}
}

// The key is the same for repetitions of an action of one run, another for another action or run, and never the same for
// two observations.
func TestKeys(t *testing.T) {
	s := newServer(t, nil)
	hook := s.hook(t)
	other := target()
	other.Node.Annotations["safedrain.dev/drain"] = `{"v":1,"run":"r2"}`
	second := target()
	second.Service.Name = "lb2"
	for _, f := range []func() error{
		func() error { return hook.Withdraw(t.Context(), target()) },
		func() error { return hook.Withdraw(t.Context(), target()) },
		func() error { return s.hook(t).Withdraw(t.Context(), target()) },
		func() error { return hook.Restore(t.Context(), target()) },
		func() error { return hook.Withdraw(t.Context(), other) },
		func() error { return hook.Withdraw(t.Context(), second) },
		func() error { _, err := hook.Prove(t.Context(), target()); return err },
		func() error { _, err := hook.Prove(t.Context(), target()); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	first := map[string]int{}
	for i, c := range s.seen() {
		key := c.header.Get("Idempotency-Key")
		if _, ok := first[key]; !ok {
			first[key] = i
		}
		got = append(got, first[key])
	}
	if diff := cmp.Diff([]int{0, 0, 0, 3, 4, 5, 6, 7}, got); diff != "" {
		t.Errorf("the first call with the same key, -want +got\n%s", diff)
	}
}

// What the server is told.
func TestRequest(t *testing.T) {
	s := newServer(t, nil)
	if err := s.hook(t).Withdraw(t.Context(), target()); err != nil {
		t.Fatal(err)
	}
	c := s.seen()[0]
	if diff := cmp.Diff(*protocol.NewRequest("edge", protocol.Withdraw, target()), c.request); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if c.header.Get("Content-Type") != "application/json" || c.header.Get("Safedrain-Action") != "withdraw" || c.header.Get("Authorization") != "" {
		t.Errorf("%v", c.header)
	}
}

// The token is read from its file, again when that changes, and never leaves for another server.
func TestToken(t *testing.T) {
	file := write(t, "token", "first\n")
	s := newServer(t, nil)
	s.want("first")
	hook := s.hook(t, "token-file", file)
	if err := hook.Withdraw(t.Context(), target()); err != nil {
		t.Error(err)
	}
	s.want("second")
	if err := hook.Withdraw(t.Context(), target()); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "who are you") {
		t.Errorf("%v, want that it cannot work", err)
	}
	if err := os.WriteFile(file, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := hook.Withdraw(t.Context(), target()); err != nil {
		t.Error(err)
	}
	elsewhere := newServer(t, nil)
	s.next(status(307, "Location", elsewhere.URL+"/lb"))
	if err := hook.Withdraw(t.Context(), target()); !errors.Is(err, errRedirect) || len(elsewhere.seen()) != 0 {
		t.Errorf("%v, and the other server saw %d requests", err, len(elsewhere.seen()))
	}
	for name, text := range map[string]string{"empty": "\n", "two lines": "a\nb", "binary": "a\x00b"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := hook.Withdraw(t.Context(), target()); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "holds no token") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := hook.Withdraw(t.Context(), target()); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

// Both sides show who they are, and nobody is believed who does not.
func TestTLS(t *testing.T) {
	certFile, keyFile, cert := identity(t, "safedrain")
	otherCert, otherKey, _ := identity(t, "somebody")
	for name, test := range map[string]struct {
		server  func(*httptest.Server)
		noCA    bool
		options []string
		says    string
	}{
		"the server's CA":            {},
		"a CA unknown":               {noCA: true, says: "certificate signed by unknown authority"},
		"another name":               {options: []string{"server-name", "other.example.org"}, says: "other.example.org"},
		"a name in its certificate":  {options: []string{"server-name", "example.com"}},
		"a client certificate":       {server: mutual(cert), options: []string{"cert-file", certFile, "key-file", keyFile}},
		"none, and it is asked for":  {server: mutual(cert), says: "tls:"},
		"another client certificate": {server: mutual(cert), options: []string{"cert-file", otherCert, "key-file", otherKey}, says: "tls:"},
		"a key of another":           {options: []string{"cert-file", certFile, "key-file", otherKey}, says: "private key does not match"},
		"a certificate without key":  {options: []string{"cert-file", certFile}, says: "needs both"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, test.server)
			hook := s.hook(t, test.options...)
			if test.noCA {
				hook = New("edge", options(t, "url", s.URL), false)
			}
			hook.retryWait = time.Millisecond
			err := hook.Withdraw(t.Context(), target())
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
			if want := map[bool]int{true: 1}[test.says == ""]; len(s.seen()) != want {
				t.Errorf("%d requests got through, want %d", len(s.seen()), want)
			}
		})
	}
}

// Without encryption no token leaves this machine.
func TestPlain(t *testing.T) {
	s := newServer(t, func(h *httptest.Server) { h.TLS = &tls.Config{ServerName: "plain"} })
	token := write(t, "token", "secret")
	s.want("secret")
	if err := New("edge", options(t, "url", s.URL, "token-file", token), false).Withdraw(t.Context(), target()); err != nil {
		t.Errorf("on this machine: %v", err)
	}
	err := New("edge", options(t, "url", "http://192.0.2.1/", "token-file", token), false).Withdraw(t.Context(), target())
	if !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "unencrypted") {
		t.Errorf("elsewhere: %v", err)
	}
}

func TestDeadlines(t *testing.T) {
	s := newServer(t, nil)
	s.fail(hooktest.Slow)
	if err := s.hook(t, "timeout", "200ms").Withdraw(t.Context(), target()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that it timed out", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.hook(t).Prove(ctx, target()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the context's error", err)
	}
	refused := New("edge", options(t, "url", "https://"+refusing(t), "retries", "1"), false)
	refused.retryWait = time.Millisecond
	if err := refused.Withdraw(t.Context(), target()); err == nil || !strings.Contains(err.Error(), "refused") || errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("%v, want a failure that may pass", err)
	}
}

func TestAssert(t *testing.T) {
	svc := target().Service
	for name, test := range map[string]struct {
		hook   *Hook
		broken string
	}{
		"configured":              {New("edge", options(t, "url", "https://lb.example.com"), false), ""},
		"not configured":          {New("edge", lbhooks.Options{}, false), "--hook-option edge.url="},
		"not configured, offline": {New("edge", lbhooks.Options{}, true), ""},
		"a CA that is none":       {New("edge", options(t, "url", "https://lb.example.com", "ca-file", write(t, "ca", "x")), false), "no certificate in"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := test.hook.Match(svc, nil); ok {
				t.Error("it matched by itself")
			}
			r := test.hook.Assert(svc, nil)
			fine := test.broken == ""
			if r.Hook != "edge" || r.Provable != fine || (r.Removal == lbhooks.RemovalHook) != fine || (r.Broken == "") != fine || !strings.Contains(r.Broken, test.broken) {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for name, test := range map[string]struct{ key, value, says string }{
		"url":               {"url", "https://lb.example.com:8443/hook?x=y", ""},
		"no scheme":         {"url", "lb.example.com/hook", "not a URL of http or https"},
		"another scheme":    {"url", "ftp://lb.example.com", "not a URL of http or https"},
		"no host":           {"url", "https:///x", "not a URL of http or https"},
		"a password":        {"url", "https://me:secret@lb.example.com", "does not belong in a URL"},
		"a file not there":  {"ca-file", "/no/such/file", "no such file"},
		"a relative file":   {"token-file", "token", "not an absolute path"},
		"a directory":       {"token-file", "/", "a directory"},
		"retries":           {"retries", "10", ""},
		"too many retries":  {"retries", "11", "at most 10"},
		"no number":         {"retries", "-1", "not a number"},
		"a time of nothing": {"timeout", "0s", "longer than 0s"},
		"unknown":           {"insecure", "true", `no option "insecure"; known: ca-file, cert-file`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lbhooks.NewOptions(Options(), map[string]string{test.key: test.value})
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}
