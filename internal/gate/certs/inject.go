package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// fieldManager owns the caBundles.
const fieldManager = "safedrain-gate"

// configuration is a webhook configuration as it was read: whom each of its webhooks trusts.
type configuration struct {
	kind, name, version string
	bundles             [][]byte
	patch               func(ctx context.Context, c kubernetes.Interface, name string, patch []byte, o metav1.PatchOptions) error
}

// configurations reads the ones of that name that are there.
func (m *Managed) configurations(ctx context.Context) ([]*configuration, error) {
	api := m.Client.AdmissionregistrationV1()
	var out []*configuration
	v, err := api.ValidatingWebhookConfigurations().Get(ctx, m.Configuration, metav1.GetOptions{})
	switch {
	case err == nil:
		out = append(out, ofValidating(v))
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read validatingwebhookconfiguration %s: %w", m.Configuration, err)
	}
	w, err := api.MutatingWebhookConfigurations().Get(ctx, m.Configuration, metav1.GetOptions{})
	switch {
	case err == nil:
		out = append(out, ofMutating(w))
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read mutatingwebhookconfiguration %s: %w", m.Configuration, err)
	}
	return out, nil
}

func ofValidating(v *admissionregistrationv1.ValidatingWebhookConfiguration) *configuration {
	c := &configuration{kind: "validatingwebhookconfiguration", name: v.Name, version: v.ResourceVersion}
	for i := range v.Webhooks {
		c.bundles = append(c.bundles, v.Webhooks[i].ClientConfig.CABundle)
	}
	c.patch = func(ctx context.Context, k kubernetes.Interface, name string, patch []byte, o metav1.PatchOptions) error {
		_, err := k.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(ctx, name, types.JSONPatchType, patch, o)
		return err
	}
	return c
}

func ofMutating(v *admissionregistrationv1.MutatingWebhookConfiguration) *configuration {
	c := &configuration{kind: "mutatingwebhookconfiguration", name: v.Name, version: v.ResourceVersion}
	for i := range v.Webhooks {
		c.bundles = append(c.bundles, v.Webhooks[i].ClientConfig.CABundle)
	}
	c.patch = func(ctx context.Context, k kubernetes.Interface, name string, patch []byte, o metav1.PatchOptions) error {
		_, err := k.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, name, types.JSONPatchType, patch, o)
		return err
	}
	return c
}

// trusts reports whether every webhook of the configuration trusts an authority.
func (c *configuration) trusts(authority *x509.Certificate) bool {
	for _, bundle := range c.bundles {
		certs, err := decodeCerts(bundle)
		if err != nil || !contains(certs, authority) {
			return false
		}
	}
	return true
}

func contains(certs []*x509.Certificate, c *x509.Certificate) bool {
	for _, have := range certs {
		if have.Equal(c) {
			return true
		}
	}
	return false
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// trust writes the bundle into the configuration where it is another one, provided that nobody changed it since.
func (c *configuration) trust(ctx context.Context, client kubernetes.Interface, bundle []byte) error {
	patch := []operation{{"test", "/metadata/resourceVersion", c.version}}
	for i, have := range c.bundles {
		if !bytes.Equal(have, bundle) {
			patch = append(patch, operation{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle})
		}
	}
	if len(patch) == 1 {
		return nil
	}
	text, err := json.Marshal(patch)
	if err == nil {
		err = c.patch(ctx, client, c.name, text, metav1.PatchOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("put the authority into %s %s: %w", c.kind, c.name, err)
	}
	return nil
}
