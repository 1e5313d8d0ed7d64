package gate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/safedrain/safedrain/internal/gate/certs"
)

// Times of a connection. A review is answered within its own deadline, far below these.
const (
	readTimeout  = 15 * time.Second
	writeTimeout = 15 * time.Second
	idleTimeout  = 2 * time.Minute
	// closeTimeout is how long answers that are under way may take when the server ends.
	closeTimeout = 15 * time.Second
)

// server serves the webhooks. The manager starts it before everything else and ends it last. It differs from
// controller-runtime's own in that the end of the process does not cancel what is under way, that a process which is about to
// end sends its callers elsewhere, and that the port is taken when it is made, so that a taken one is found out at once.
type server struct {
	listener net.Listener
	mux      *http.ServeMux
	tls      *tls.Config
	leaving  *atomic.Bool
	serving  atomic.Bool
	log      *slog.Logger
}

var _ webhook.Server = (*server)(nil)

// listen takes the port. Callers have to show a certificate of the authorities in clientCA, when a file is named.
func listen(ctx context.Context, port int, source certs.Source, clientCA string, leaving *atomic.Bool, log *slog.Logger) (*server, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: source.Get}
	if clientCA != "" {
		text, err := os.ReadFile(clientCA) //nolint:gosec // the file that the operator names
		if err != nil {
			return nil, fmt.Errorf("read the authorities of callers: %w", err)
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !config.ClientCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read the authorities of callers: %s holds no certificate in PEM", clientCA)
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("serve webhooks: %w", err)
	}
	return &server{listener: l, mux: http.NewServeMux(), tls: config, leaving: leaving, log: log}, nil
}

// NeedLeaderElection is false: every replica answers.
func (*server) NeedLeaderElection() bool { return false }

// Register serves a handler on a path.
func (s *server) Register(path string, h http.Handler) { s.mux.Handle(path, h) }

// WebhookMux returns what serves the paths.
func (s *server) WebhookMux() *http.ServeMux { return s.mux }

// StartedChecker fails unless a handshake with the server succeeds.
func (s *server) StartedChecker() healthz.Checker {
	return func(req *http.Request) error {
		if !s.serving.Load() {
			return errors.New("webhooks are not served yet")
		}
		dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // asks itself whether it answers at all
		_, port, err := net.SplitHostPort(s.listener.Addr().String())
		if err != nil {
			return err
		}
		conn, err := dialer.DialContext(req.Context(), "tcp", net.JoinHostPort("localhost", port))
		if err != nil {
			return fmt.Errorf("webhooks are not served: %w", err)
		}
		return conn.Close()
	}
}

// Start serves until ctx ends and then finishes what is under way.
func (s *server) Start(ctx context.Context) error {
	srv := &http.Server{
		Handler:           s.handler(),
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // of strangers who do not speak TLS, mostly
	}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		ended <- srv.Shutdown(closing)
	}()
	s.serving.Store(true)
	if err := srv.Serve(tls.NewListener(s.listener, s.tls)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve webhooks: %w", err)
	}
	return <-ended
}

// handler is the mux. Once the process is about to end it asks each caller to open a new connection, which another replica
// takes: an API server keeps one connection to a replica for hours.
func (s *server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		s.mux.ServeHTTP(w, req)
	})
}
