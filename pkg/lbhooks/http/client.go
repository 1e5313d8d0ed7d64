package httphook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// errRedirect refuses a redirect that would carry the request, and with it the token, somewhere else.
var errRedirect = errors.New("the server redirects")

// maxRedirects is how many redirects on the same server are followed.
const maxRedirects = 3

// client makes the client from the options. The server's certificate is always checked.
func (h *Hook) client() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: h.options.Text(optionServerName)}
	if path := h.options.Text(optionCAFile); path != "" {
		pem, err := os.ReadFile(path) //nolint:gosec // the operator's own file
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", path)
		}
	}
	if cert, key := h.options.Text(optionCertFile), h.options.Text(optionKeyFile); cert != "" && key != "" {
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		// It is read at each handshake, so that a renewed one is used.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}
	}
	// HTTP/1.1 does for small calls, and it says why a server ends a connection: with HTTP/2 a client certificate that is
	// refused shows as a connection that is closed.
	return &http.Client{
		CheckRedirect: sameServer,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: config,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}, nil
}

// sameServer follows a redirect that keeps method and body and stays at the server; any other is an error.
func sameServer(next *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case next.URL.Scheme != first.URL.Scheme || next.URL.Host != first.URL.Host:
		return fmt.Errorf("%w to %s://%s, which is not followed: configure that url", errRedirect, next.URL.Scheme, next.URL.Host)
	case next.Method != first.Method:
		return fmt.Errorf("%w in a way that turns %s into %s, which is not followed", errRedirect, first.Method, next.Method)
	case len(via) > maxRedirects:
		return fmt.Errorf("%w again and again", errRedirect)
	}
	return nil
}

// maxToken bounds the size of a token file.
const maxToken = 64 << 10

// tokenFile is a file with a bearer token, read again when it changes.
type tokenFile struct {
	path string

	mu       sync.Mutex
	token    string
	modified time.Time
	size     int64
}

// read returns the token, "" when there is no file.
func (f *tokenFile) read() (string, error) {
	if f.path == "" {
		return "", nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return "", err
	}
	// A file that was written within the clock's resolution looks the same; it is read again while it is young.
	if f.token != "" && info.ModTime().Equal(f.modified) && info.Size() == f.size && time.Since(info.ModTime()) > time.Second {
		return f.token, nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxToken))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s holds no token", f.path)
	}
	f.token, f.modified, f.size = token, info.ModTime(), info.Size()
	return token, nil
}
