// Package customkinds makes an API server serve the kinds of balancers, by their names and scopes alone.
package customkinds

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/test/controlplane"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Resources of MetalLB's configuration.
var (
	Pools             = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	L2Advertisements  = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "l2advertisements"}
	BGPAdvertisements = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "bgpadvertisements"}
	BGPPeers          = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta2", Resource: "bgppeers"}
)

// Kind is a kind of custom resource.
type Kind struct {
	schema.GroupVersionResource

	Name       string
	Namespaced bool
}

// MetalLB returns the kinds of MetalLB and frr-k8s that safedrain reads.
func MetalLB() []Kind {
	return []Kind{
		{Pools, "IPAddressPool", true},
		{L2Advertisements, "L2Advertisement", true},
		{BGPAdvertisements, "BGPAdvertisement", true},
		{BGPPeers, "BGPPeer", true},
		{metallb.L2Statuses, "ServiceL2Status", true},
		{metallb.BGPStatuses, "ServiceBGPStatus", true},
		{metallb.NodeStates, "FRRNodeState", false},
	}
}

// served is how long a kind may take to be served, or to be gone.
const served = 2 * time.Minute

// Define makes the kinds known and returns when they are served. Those that are known already are fine.
func Define(ctx context.Context, client dynamic.Interface, kinds ...Kind) error {
	for _, k := range kinds {
		if _, err := client.Resource(definitions).Create(ctx, k.definition(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("define %s: %w", k.GroupResource(), err)
		}
	}
	for _, k := range kinds {
		err := controlplane.Poll(ctx, served, k.GroupResource().String()+" served", func(ctx context.Context) (bool, string, error) {
			_, err := client.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: 1})
			return err == nil, "", err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove takes the kinds away with all their objects and returns when they are no longer served.
func Remove(ctx context.Context, client dynamic.Interface, kinds ...Kind) error {
	for _, k := range kinds {
		name := k.GroupResource().String()
		if err := client.Resource(definitions).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		err := controlplane.Poll(ctx, served, name+" gone", func(ctx context.Context) (bool, string, error) {
			if _, err := client.Resource(definitions).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return false, "still defined", err
			}
			_, err := client.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: 1})
			return apierrors.IsNotFound(err), "still served", nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *Kind) definition() *unstructured.Unstructured {
	scope := "Cluster"
	if k.Namespaced {
		scope = "Namespaced"
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": k.GroupResource().String()},
		"spec": map[string]any{
			"group": k.Group, "scope": scope,
			"names": map[string]any{
				"plural": k.Resource, "singular": strings.ToLower(k.Name), "kind": k.Name, "listKind": k.Name + "List",
			},
			"versions": []any{map[string]any{
				"name": k.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}
}
