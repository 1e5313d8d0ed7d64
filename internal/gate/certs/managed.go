package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/gate/leftovers"
	"github.com/safedrain/safedrain/pkg/guard"
)

// jitter spreads the replicas' looks at the Secret.
const jitter = 0.2

// Managed makes its own certificates. Every replica may write the Secret and the configurations: the resourceVersion
// decides who is first, and what they write is derived from what they read.
type Managed struct {
	current
	Client kubernetes.Interface
	Secret guard.Key
	// Configuration is the name of the webhook configurations that are to trust the authority, a validating and a
	// mutating one; one that is not there is left out.
	Configuration string
	Policy        Policy
	// Every is how often the Secret and the configurations are looked at.
	Every time.Duration
	Clock clock.Clock
	Log   logr.Logger

	state   *State
	trusted trust
	said    string
}

// trust is since when every configuration has been seen with an authority.
type trust struct {
	of    *x509.Certificate
	since time.Time
}

// Run keeps the certificate until ctx ends. It first tries until there is one.
func (m *Managed) Run(ctx context.Context) error {
	for {
		pause := m.Every
		if err := m.step(ctx); err != nil && ctx.Err() == nil {
			if m.state == nil {
				pause = min(m.Every, time.Second)
			}
			m.complain(err)
		}
		timer := m.Clock.NewTimer(wait.Jitter(pause, jitter))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// complain logs an error once.
func (m *Managed) complain(err error) {
	if text := err.Error(); text != m.said {
		m.said = text
		m.Log.Error(err, "the webhook certificate could not be looked after; trying again")
	}
}

// step is one look. The configurations are read before the Secret, and written only as they were read: so nobody puts
// back an older bundle over a newer one.
func (m *Managed) step(ctx context.Context) error {
	found, err := m.configurations(ctx)
	if err != nil {
		return err
	}
	state, err := m.share(ctx, found)
	if err != nil {
		return err
	}
	if m.state == nil || !state.Serving.Cert.Equal(m.state.Serving.Cert) {
		m.Log.Info("serving a new certificate", "expires", state.Serving.Cert.NotAfter, "hosts", m.Policy.Hosts)
	}
	m.state = state
	m.cert.Store(state.Serving.tls())
	for _, c := range found {
		if err := c.trust(ctx, m.Client, state.Bundle()); err != nil {
			return err
		}
	}
	m.said = ""
	return nil
}

// share reads the state from the Secret and takes it on where that is due.
func (m *Managed) share(ctx context.Context, found []*configuration) (*State, error) {
	secrets := m.Client.CoreV1().Secrets(m.Secret.Namespace)
	secret, err := secrets.Get(ctx, m.Secret.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		secret = nil
	case err != nil:
		return nil, fmt.Errorf("read secret %s: %w", m.Secret, err)
	}
	state, err := m.read(secret)
	if err != nil {
		return nil, err
	}
	now := m.Clock.Now()
	next, changed, err := m.Policy.next(state, now, m.observe(state, found, now))
	if err != nil || !changed && secret != nil {
		return next, err
	}
	if err := m.write(ctx, secret, next); err != nil {
		return nil, err
	}
	return next, nil
}

// read returns the state in the Secret. Without one it is this replica's own, so that a Secret that somebody deleted does
// not take away what the API servers trust.
func (m *Managed) read(secret *corev1.Secret) (*State, error) {
	if secret == nil || len(secret.Data[entryServing]) == 0 {
		return m.state, nil
	}
	state, err := decode(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("secret %s is not the gate's: %w; delete it, and a new one is made", m.Secret, err)
	}
	return state, nil
}

// observe returns for how long every configuration has been seen with the authority that is about to take over.
func (m *Managed) observe(s *State, found []*configuration, now time.Time) time.Duration {
	if s == nil || s.Next == nil || len(found) == 0 {
		m.trusted = trust{}
		return 0
	}
	for _, c := range found {
		if !c.trusts(s.Next.Cert) {
			m.trusted = trust{}
			return 0
		}
	}
	if m.trusted.of == nil || !m.trusted.of.Equal(s.Next.Cert) {
		m.trusted = trust{s.Next.Cert, now}
	}
	return now.Sub(m.trusted.since)
}

// write puts a state into the Secret, unless another replica was first.
func (m *Managed) write(ctx context.Context, secret *corev1.Secret, s *State) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	secrets := m.Client.CoreV1().Secrets(m.Secret.Namespace)
	if secret == nil {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: m.Secret.Namespace, Name: m.Secret.Name,
				Labels: leftovers.Labels(),
			},
			Type: corev1.SecretTypeTLS, Data: data,
		}, metav1.CreateOptions{})
	} else {
		changed := secret.DeepCopy()
		changed.Data = data
		_, err = secrets.Update(ctx, changed, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write secret %s: %w", m.Secret, err)
	}
	m.Log.Info("the webhook certificates were taken on", "authority", s.CA.Cert.NotAfter, "certificate", s.Serving.Cert.NotAfter,
		"next", s.Next != nil, "old", len(s.Old))
	return nil
}
