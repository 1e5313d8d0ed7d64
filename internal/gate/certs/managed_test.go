package certs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/safedrain/safedrain/pkg/guard"
)

const configurationName = "safedrain-gate"

// world is an API server in memory with a validating configuration of two webhooks and a mutating one.
func world() *fake.Clientset {
	return fake.NewClientset(
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: configurationName, ResourceVersion: "1"},
			Webhooks:   []admissionregistrationv1.ValidatingWebhook{{Name: "evict.safedrain.dev"}, {Name: "scale.safedrain.dev"}},
		},
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: configurationName, ResourceVersion: "1"},
			Webhooks:   []admissionregistrationv1.MutatingWebhook{{Name: "scale.safedrain.dev"}},
		},
	)
}

func replica(c *fake.Clientset, now *testingclock.FakeClock) *Managed {
	return &Managed{
		Client: c, Secret: guard.Key{Namespace: "shop", Name: "gate-tls"}, Configuration: configurationName,
		Policy: policy, Every: time.Minute, Clock: now, Log: logr.Discard(),
	}
}

// bundles are the caBundles of every webhook.
func bundles(t *testing.T, c *fake.Clientset) [][]byte {
	t.Helper()
	v, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), configurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), configurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return [][]byte{v.Webhooks[0].ClientConfig.CABundle, v.Webhooks[1].ClientConfig.CABundle, m.Webhooks[0].ClientConfig.CABundle}
}

// works steps a replica and checks that what it serves is trusted by every webhook.
func works(t *testing.T, c *fake.Clientset, m *Managed, now *testingclock.FakeClock) {
	t.Helper()
	if err := m.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	cert, err := m.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range bundles(t, c) {
		if err := verifies(t, cert.Leaf, b, now.Now()); err != nil {
			t.Errorf("webhook %d does not trust the certificate: %v", i, err)
		}
	}
}

// TestReplicasShare: two replicas serve one certificate, at rest nothing is written, and through a whole rotation every
// webhook trusts what either serves.
func TestReplicasShare(t *testing.T) {
	c, now := world(), testingclock.NewFakeClock(start)
	a, b := replica(c, now), replica(c, now)
	works(t, c, a, now)
	works(t, c, b, now)
	if !a.state.Serving.Cert.Equal(b.state.Serving.Cert) {
		t.Error("two replicas serve two certificates")
	}
	c.ClearActions()
	works(t, c, a, now)
	works(t, c, b, now)
	for _, action := range c.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("at rest: %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
	first := a.state.CA.Cert
	for range 100 {
		now.Step(10 * time.Minute)
		works(t, c, a, now)
		works(t, c, b, now)
	}
	if a.state.CA.Cert.Equal(first) || !a.state.CA.Cert.Equal(b.state.CA.Cert) {
		t.Error("no new authority in 16 hours, or two")
	}
}

// TestPutBack: what somebody takes away comes back: an emptied bundle, and the Secret itself, without a moment in which
// the certificate is not trusted.
func TestPutBack(t *testing.T) {
	c, now := world(), testingclock.NewFakeClock(start)
	m := replica(c, now)
	works(t, c, m, now)
	v, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), configurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v.Webhooks[1].ClientConfig.CABundle = nil
	if _, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(t.Context(), v, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	works(t, c, m, now)
	served := m.state.Serving.Cert
	if err := c.CoreV1().Secrets("shop").Delete(t.Context(), "gate-tls", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	works(t, c, m, now)
	if !m.state.Serving.Cert.Equal(served) {
		t.Error("the Secret was deleted and the certificate changed at once")
	}
	secret, err := c.CoreV1().Secrets("shop").Get(t.Context(), "gate-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if secret.Type != corev1.SecretTypeTLS {
		t.Errorf("the Secret is of type %s", secret.Type)
	}
}

// TestNotOurs: a Secret that somebody else filled is not overwritten, and the error says what to do.
func TestNotOurs(t *testing.T) {
	c, now := world(), testingclock.NewFakeClock(start)
	_, err := c.CoreV1().Secrets("shop").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "gate-tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{entryServing: []byte("theirs"), entryServingKey: []byte("theirs")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := replica(c, now).step(t.Context()); err == nil {
		t.Error("a foreign Secret was taken over")
	}
}

// TestLateReplica: a replica that read the configurations before another one changed them writes nothing.
func TestLateReplica(t *testing.T) {
	c, now := world(), testingclock.NewFakeClock(start)
	works(t, c, replica(c, now), now)
	late := &configuration{kind: "validatingwebhookconfiguration", name: configurationName, version: "0", bundles: [][]byte{nil, nil}}
	late.patch = ofValidating(&admissionregistrationv1.ValidatingWebhookConfiguration{}).patch
	err := late.trust(t.Context(), c, []byte("older"))
	if err == nil {
		t.Error("an older bundle was put over a newer one")
	}
}

// TestLostRace: of two replicas that begin at once, the one whose write comes late takes over what the other wrote.
func TestLostRace(t *testing.T) {
	c, now := world(), testingclock.NewFakeClock(start)
	winner, loser := replica(c, now), replica(c, now)
	raced := false
	c.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if raced {
			return false, nil, nil
		}
		raced = true
		return true, nil, apierrors.NewAlreadyExists(corev1.Resource("secrets"), "gate-tls")
	})
	if err := loser.step(t.Context()); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("the race was lost with: %v", err)
	}
	if _, err := loser.Get(nil); !errors.Is(err, errNone) {
		t.Error("the loser serves a certificate that it could not share")
	}
	works(t, c, winner, now)
	works(t, c, loser, now)
	if !winner.state.Serving.Cert.Equal(loser.state.Serving.Cert) {
		t.Error("the loser serves its own certificate")
	}
}

// TestRun: it has a certificate at once, and ends when it is told to.
func TestRun(t *testing.T) {
	c, now := world(), testingclock.NewFakeClock(start)
	m := replica(c, now)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	for !now.HasWaiters() {
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
		}
	}
	if _, ok := m.Expires(); !ok {
		t.Error("no certificate after the first step")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
