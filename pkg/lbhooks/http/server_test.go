package httphook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// call is one request that a server got.
type call struct {
	request protocol.Request
	header  http.Header
}

// server is a real HTTPS server that works a balancer, and fails as a test says.
type server struct {
	*httptest.Server

	mu     sync.Mutex
	token  string // wanted, unless ""
	state  hooktest.State
	fault  hooktest.Fault
	answer []func(http.ResponseWriter, *http.Request) // one for each request, before the usual answers
	calls  []call
}

func newServer(t *testing.T, change func(*httptest.Server)) *server {
	t.Helper()
	s := &server{state: hooktest.In}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = nil
	s.EnableHTTP2 = true
	if change != nil {
		change(s.Server)
	}
	if s.TLS != nil && s.TLS.ServerName == "plain" {
		s.TLS = nil
		s.Start()
	} else {
		s.StartTLS()
	}
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c := call{header: r.Header}
	if err != nil || json.Unmarshal(body, &c.request) != nil {
		http.Error(w, "not a request", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	fault, state, token := s.fault, s.state, s.token
	var first func(http.ResponseWriter, *http.Request)
	if len(s.answer) > 0 {
		first, s.answer = s.answer[0], s.answer[1:]
	}
	s.mu.Unlock()
	switch {
	case first != nil:
		first(w, r)
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case fault == hooktest.Flaky:
		http.Error(w, "the balancer restarts", http.StatusServiceUnavailable)
	case fault == hooktest.Forbidden:
		http.Error(w, "the token has expired", http.StatusUnauthorized)
	case fault == hooktest.NotServed:
		http.NotFound(w, r)
	case fault == hooktest.Slow:
		<-r.Context().Done()
	case c.request.Action != protocol.Prove:
		w.WriteHeader(http.StatusNoContent)
	default:
		fmt.Fprint(w, answers[state])
	}
}

const head = `{"apiVersion":"safedrain.dev/v1alpha1","kind":"HookAnswer",`

var answers = map[hooktest.State]string{
	hooktest.In:     head + `"out":false,"evidence":"n1 is up"}`,
	hooktest.Moving: head + `"out":false,"evidence":"n1 is draining: 3 sessions"}`,
	hooktest.Out:    head + `"out":true,"evidence":"n1 is in maintenance","by":"n2"}`,
	hooktest.Lying:  head + `"out":false,"evidence":"n1 is in maintenance, and still answers"}`,
}

// want makes the server ask for a token from now on.
func (s *server) want(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

func (s *server) fail(f hooktest.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

func (s *server) seen() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

// next makes the server answer once in this way, before anything else.
func (s *server) next(f ...func(http.ResponseWriter, *http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = append(s.answer, f...)
}

func status(code int, header ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

func body(text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

// ca writes the certificate that the server's is signed with.
func (s *server) ca(t *testing.T) string {
	t.Helper()
	return write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func options(t *testing.T, pairs ...string) lbhooks.Options {
	t.Helper()
	values := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	o, err := lbhooks.NewOptions(Options(), values)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// hook is one that trusts the server and repeats soon.
func (s *server) hook(t *testing.T, pairs ...string) *Hook {
	t.Helper()
	pairs = append([]string{"url", s.URL + "/lb", "ca-file", s.ca(t)}, pairs...)
	h := New("edge", options(t, pairs...), false)
	h.retryWait = time.Millisecond
	return h
}

func target() lbhooks.Target {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u-n1", Annotations: map[string]string{"safedrain.dev/drain": `{"v":1,"run":"r1"}`}}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "w", Name: "lb", UID: "u-lb"}}
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.Ports = []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}
	return lbhooks.Target{Service: svc, Node: n}
}

// balancer is the server as the contract's suite works it.
type balancer struct {
	*server
	h *Hook
}

func (b *balancer) Hook() lbhooks.Hook     { return b.h }
func (b *balancer) Target() lbhooks.Target { return target() }

func (b *balancer) Show(_ context.Context, s hooktest.State) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = s
	return nil
}

func (b *balancer) Fail(f hooktest.Fault) { b.fail(f) }

func (b *balancer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, By: "n2", Slowness: 4, States: []hooktest.State{hooktest.Moving, hooktest.Lying},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.NotServed, hooktest.Slow},
	}
}

func TestContract(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer {
		s := newServer(t, nil)
		return &balancer{s, s.hook(t)}
	})
}

// identity makes a key and a certificate that signs itself, and writes both.
func identity(t *testing.T, name string) (certFile, keyFile string, cert *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, DNSNames: []string{name},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile = write(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	keyFile = write(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	return certFile, keyFile, cert
}

func mutual(ca *x509.Certificate) func(*httptest.Server) {
	return func(s *httptest.Server) {
		pool := x509.NewCertPool()
		pool.AddCert(ca)
		s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	}
}

// refusing is an address where nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return l.Addr().String()
}
