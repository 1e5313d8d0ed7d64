package cluster

import (
	"context"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/pkg/guard"
)

// WebhookDomain ends the names of the gate's webhooks, whatever their configurations are called.
const WebhookDomain = ".safedrain.dev"

const (
	webhookEvict = "evict" + WebhookDomain
	// labelMode says on a configuration what the gate does in the cluster.
	labelMode = "safedrain.dev/mode"
)

// wantedWebhooks are those that a gate has, of the validating ones.
var wantedWebhooks = []string{webhookEvict, "replicas" + WebhookDomain, "scale" + WebhookDomain}

// Gate reads what the API server says of a gate: one LIST where none is installed, and two where one is. It returns nil when
// there is none, or when this user may not look.
func Gate(ctx context.Context, c *Clients) (*guard.GateFacts, error) {
	list, err := c.Kubernetes.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list validatingwebhookconfigurations: %w", err)
	}
	facts := &guard.GateFacts{Apart: map[string]string{}, Gate: map[string]string{}}
	found := map[string]*admissionregistrationv1.ValidatingWebhook{}
	for i := range list.Items {
		for k := range list.Items[i].Webhooks {
			if w := &list.Items[i].Webhooks[k]; strings.HasSuffix(w.Name, WebhookDomain) {
				found[w.Name] = w
				facts.Off = facts.Off || list.Items[i].Labels[labelMode] == "off"
			}
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	for _, name := range wantedWebhooks {
		switch w := found[name]; {
		case w == nil:
			facts.Broken = append(facts.Broken, "webhook "+name+" is not registered")
		case len(w.ClientConfig.CABundle) == 0:
			facts.Broken = append(facts.Broken, "webhook "+name+" has no caBundle, so that no API server reaches it")
		}
	}
	return facts, namespacesOfGate(ctx, c, found[webhookEvict], facts)
}

// namespacesOfGate reads what namespaces say about the gate, and which of them its evictions leave out.
func namespacesOfGate(ctx context.Context, c *Clients, evict *admissionregistrationv1.ValidatingWebhook, facts *guard.GateFacts) error {
	asked := labels.Everything()
	if evict != nil && evict.NamespaceSelector != nil {
		var err error
		if asked, err = metav1.LabelSelectorAsSelector(evict.NamespaceSelector); err != nil {
			return fmt.Errorf("webhook %s: %w", webhookEvict, err)
		}
	}
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.Kubernetes.CoreV1().Namespaces().List(ctx, opts)
		switch {
		case apierrors.IsForbidden(err):
			return nil
		case err != nil:
			return fmt.Errorf("list namespaces: %w", err)
		}
		for i := range page.Items {
			noteNamespace(&page.Items[i], asked, facts)
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return nil
		}
	}
}

func noteNamespace(n *corev1.Namespace, asked labels.Selector, facts *guard.GateFacts) {
	if !asked.Matches(labels.Set(n.Labels)) {
		facts.Apart[n.Name] = "in a namespace that " + webhookEvict + " leaves out"
	}
	if mode := n.Annotations[guard.AnnotationGate]; mode != "" {
		facts.Gate[n.Name] = mode
	}
}
