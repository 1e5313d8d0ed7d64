package kubevip

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Prove makes one observation. No kube-vip that announces Services is on the node any more; and where there is an
// election, another node holds the Lease, renewed it lately, has a usable endpoint, and no second node is labelled as the
// one that has the address.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.client == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, "there is no API server to ask", nil)
	}
	c := h.settings(t.Service)
	if why := c.unreadable(); why != "" {
		return lbhooks.Proof{Evidence: "nothing shows who announces: " + why}, nil
	}
	still, err := h.agent(ctx, t)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	if still != "" {
		return lbhooks.Proof{Evidence: fmt.Sprintf("kube-vip still runs on %s: %s", t.Node.Name, still)}, nil
	}
	if c.mode(t.Service) == modeNodes {
		return lbhooks.Proof{Out: true, Evidence: fmt.Sprintf("no kube-vip runs on %s, its BGP sessions are closed", t.Node.Name)}, nil
	}
	return h.elected(ctx, t, c)
}

func (h *Hook) settings(svc *corev1.Service) *config {
	if c, ok := h.configs.Load(types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}); ok {
		return c.(*config)
	}
	c := defaultConfig()
	return &c
}

// agent returns a pod of kube-vip on the node that announces the Service; "" when there is none.
func (h *Hook) agent(ctx context.Context, t lbhooks.Target) (string, error) {
	node := t.Node.Name
	list, err := h.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		LabelSelector: LabelSelector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return "", lbhooks.ReadFailed(Name, "list", "pods", err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if c := configOf(pod); c.services && c.claims(t.Service) != "" && !ended && pod.Spec.NodeName == node {
			if pod.DeletionTimestamp != nil {
				return pod.Namespace + "/" + pod.Name + " is terminating", nil
			}
			return pod.Namespace + "/" + pod.Name, nil
		}
	}
	return "", nil
}

// elected looks at the Lease and at its holder.
func (h *Hook) elected(ctx context.Context, t lbhooks.Target, c *config) (lbhooks.Proof, error) {
	held, err := h.leases.Get(ctx, c.leaseOf(t.Service))
	if err != nil {
		return lbhooks.Proof{}, err
	}
	switch {
	case !held.Found, held.Holder == "":
		return lbhooks.Proof{Evidence: held.Evidence + ": no other node has taken over yet"}, nil
	case same(held.Holder, t.Node):
		return lbhooks.Proof{Evidence: held.Evidence}, nil
	case !held.Fresh:
		return lbhooks.Proof{Evidence: held.Evidence + ": its holder may be dead"}, nil
	}
	if t.Service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		serves, err := h.serves(ctx, t.Service, held.Holder, c)
		if err != nil {
			return lbhooks.Proof{}, err
		}
		if !serves {
			return lbhooks.Proof{Evidence: held.Evidence + ", which has no usable endpoint"}, nil
		}
	}
	if c.labels {
		others, err := h.labelled(ctx, t.Service, held.Holder)
		if err != nil {
			return lbhooks.Proof{}, err
		}
		if len(others) > 0 {
			return lbhooks.Proof{Evidence: fmt.Sprintf("%s, but %s is labelled to have the address too", held.Evidence, shorten(others))}, nil
		}
	}
	evidence := held.Evidence
	if c.arp {
		evidence += lbhooks.NeighboursUnseen
	}
	return lbhooks.Proof{Out: true, By: held.Holder, Evidence: evidence}, nil
}

// same reports whether kube-vip's name of a node means this one: the node's name, or its host's where none is set.
func same(holder string, n *corev1.Node) bool {
	return holder == n.Name || holder == n.Labels[corev1.LabelHostname]
}

// serves reports whether the holder has an endpoint that kube-vip counts.
func (h *Hook) serves(ctx context.Context, svc *corev1.Service, holder string, c *config) (bool, error) {
	list, err := h.client.DiscoveryV1().EndpointSlices(svc.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: svc.Name}.String(),
	})
	if err != nil {
		return false, lbhooks.ReadFailed(Name, "list", "endpointslices.discovery.k8s.io", err)
	}
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return lbhooks.NodesWith(all, c.usable)[holder], nil
}

// labelled lists the nodes besides the holder that kube-vip labelled as having the Service's address.
func (h *Hook) labelled(ctx context.Context, svc *corev1.Service, holder string) ([]string, error) {
	key := labelProvided + svc.Name + "." + svc.Namespace
	if len(validation.IsQualifiedName(key)) > 0 {
		return nil, nil // too long for a label: kube-vip could not set it either
	}
	list, err := h.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: key})
	if err != nil {
		return nil, lbhooks.ReadFailed(Name, "list", "nodes", err)
	}
	var out []string
	for i := range list.Items {
		if n := &list.Items[i]; !same(holder, n) && strings.TrimSpace(n.Labels[key]) != "" {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return out, nil
}
