// Package apiproxy stands between a program under test and an API server: it counts what the program asks for, and
// answers in the server's place where a test wants that.
package apiproxy

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Request is one request that was made.
type Request struct {
	Method   string
	Path     string
	Query    string
	Watch    bool // it lasts until somebody ends it, and does not count as in flight
	Continue bool // a further page of a list
	Code     int  // of the answer; 0 while it is awaited
	Began    time.Time
	Ended    time.Time
}

// Proxy forwards requests in the name of one user, over HTTP/2 or HTTP/1.1, as API servers do.
type Proxy struct {
	config  *rest.Config
	server  *httptest.Server
	forward *httputil.ReverseProxy

	mu          sync.Mutex
	requests    []*Request
	inFlight    int
	maxInFlight int
	answer      func(http.ResponseWriter, *http.Request) bool
}

// New starts a proxy to the API server of a configuration, with its credentials. Close ends it.
func New(config *rest.Config) (*Proxy, error) {
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("host of the API server %q: %w", config.Host, err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server %q: %w", config.Host, err)
	}
	p := &Proxy{config: config, forward: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorLog:      log.New(io.Discard, "", 0),
	}}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(p.handle))
	p.server.Config.ErrorLog = p.forward.ErrorLog
	p.server.EnableHTTP2 = true
	p.server.StartTLS()
	return p, nil
}

// Close ends the proxy and what is still open.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}

// Config is the way through the proxy. It needs no credentials; those of the user are there for programs that ask for some.
func (p *Proxy) Config() *rest.Config {
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	tls := rest.TLSClientConfig{CAData: certificate, CertData: p.config.CertData, KeyData: p.config.KeyData}
	return &rest.Config{Host: p.server.URL, TLSClientConfig: tls, QPS: -1}
}

// Answer lets the function answer from now on: what it returns false for is forwarded. Nil forwards everything.
func (p *Proxy) Answer(answer func(http.ResponseWriter, *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// Reset forgets the requests so far.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.maxInFlight = nil, p.inFlight
}

// Requests returns copies of the requests since the last Reset, in their order.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Request, 0, len(p.requests))
	for _, r := range p.requests {
		out = append(out, *r)
	}
	return out
}

// Count returns how many requests of a kind were made since the last Reset; nil counts all.
func (p *Proxy) Count(kind func(*Request) bool) int {
	return len(slices.DeleteFunc(p.Requests(), func(r Request) bool { return kind != nil && !kind(&r) }))
}

// MaxInFlight is the most requests that were under way at once since the last Reset, watches apart.
func (p *Proxy) MaxInFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.maxInFlight
}

func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	entry := &Request{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Began: time.Now(),
		Watch: query.Get("watch") == "true" || query.Get("watch") == "1", Continue: query.Get("continue") != "",
	}
	answer := p.begin(entry)
	recorder := &recorder{ResponseWriter: w, code: http.StatusOK}
	defer func() { p.end(entry, recorder.code) }() // also when the forwarding breaks off by a panic
	if answer == nil || !answer(recorder, r) {
		p.forward.ServeHTTP(recorder, r)
	}
}

func (p *Proxy) begin(entry *Request) (answer func(http.ResponseWriter, *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, entry)
	if !entry.Watch {
		p.inFlight++
		p.maxInFlight = max(p.maxInFlight, p.inFlight)
	}
	return p.answer
}

func (p *Proxy) end(entry *Request, code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry.Ended, entry.Code = time.Now(), code
	if !entry.Watch {
		p.inFlight--
	}
}

// recorder notes the code of an answer.
type recorder struct {
	http.ResponseWriter

	code int
}

func (r *recorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap lets the proxy flush what it forwards.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
