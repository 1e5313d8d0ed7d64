// Package certs keeps the certificate that the gate's webhooks serve.
//
// [Managed] makes its own: an authority and a serving certificate in one Secret that all replicas share, and the
// authority in the caBundle of the webhook configurations. [Files] serves what somebody else keeps in a directory, such as
// cert-manager. Both give a server the certificate of the moment and say when it ends.
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Source is where a server has its certificate from.
type Source interface {
	// Run keeps the certificate until ctx ends.
	Run(ctx context.Context) error
	// Get is a tls.Config's GetCertificate.
	Get(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Expires is when the certificate ends; false while there is none.
	Expires() (time.Time, bool)
}

var (
	_ Source = (*Managed)(nil)
	_ Source = (*Files)(nil)
)

var errNone = errors.New("there is no certificate yet")

// current is the certificate of the moment.
type current struct {
	cert atomic.Pointer[tls.Certificate]
}

// Get is a tls.Config's GetCertificate.
func (c *current) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cert := c.cert.Load(); cert != nil {
		return cert, nil
	}
	return nil, errNone
}

// Expires is when the certificate ends; false while there is none.
func (c *current) Expires() (time.Time, bool) {
	cert := c.cert.Load()
	if cert == nil || cert.Leaf == nil {
		return time.Time{}, false
	}
	return cert.Leaf.NotAfter, true
}

// Files serves tls.crt and tls.key of a directory, and what replaces them.
type Files struct {
	current
	watcher *certwatcher.CertWatcher
}

// NewFiles reads the files, which have to be there.
func NewFiles(dir string, log logr.Logger) (*Files, error) {
	w, err := certwatcher.New(dir+"/tls.crt", dir+"/tls.key")
	if err != nil {
		return nil, fmt.Errorf("read the certificate in %s: %w", dir, err)
	}
	f := &Files{watcher: w}
	w.RegisterCallback(func(cert tls.Certificate) {
		f.cert.Store(&cert)
		log.Info("the certificate was read", "expires", cert.Leaf.NotAfter)
	})
	return f, nil
}

// Run watches the files until ctx ends.
func (f *Files) Run(ctx context.Context) error { return f.watcher.Start(ctx) }
