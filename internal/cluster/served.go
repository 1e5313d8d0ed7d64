package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// acceptAggregated asks for all groups, versions and resources in one answer.
const acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

// kinds returns what the cluster serves of the kinds that hooks need: one GET of /apis, or, from a server that does not
// aggregate, one more for each group version that hooks need.
func (c *Clients) kinds(ctx context.Context, needs []lbhooks.Need) (servedKinds, error) {
	c.mu.Lock()
	known := c.served
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	found, err := c.discover(ctx, needs)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = found
	return found, nil
}

func (c *Clients) discover(ctx context.Context, needs []lbhooks.Need) (servedKinds, error) {
	d := c.Discovery
	if d == nil {
		d = c.Kubernetes.Discovery()
	}
	if client := d.RESTClient(); client != nil {
		body, err := get(ctx, client, acceptAggregated, "/apis")
		if err != nil {
			return nil, fmt.Errorf("ask the API server which kinds it serves: %w", err)
		}
		var all apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(body, &all); err == nil && all.Kind == "APIGroupDiscoveryList" {
			return fromAggregated(&all), nil
		}
	}
	found := servedKinds{}
	for _, gv := range groupVersions(needs) {
		list, err := resourcesOf(ctx, d.RESTClient(), gv, d.ServerResourcesForGroupVersion)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask the API server which kinds of %s it serves: %w", gv, err)
		}
		for _, r := range list.APIResources {
			found.add(schema.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: r.Kind}, r.Name)
		}
	}
	return found, nil
}

// resourcesOf asks for one group version; by path where there is a client, so that ctx ends the call.
func resourcesOf(ctx context.Context, client rest.Interface, gv schema.GroupVersion,
	plain func(string) (*metav1.APIResourceList, error),
) (*metav1.APIResourceList, error) {
	if client == nil {
		return plain(gv.String())
	}
	var list metav1.APIResourceList
	body, err := get(ctx, client, "application/json", "/apis", gv.Group, gv.Version)
	if err != nil {
		return nil, err
	}
	return &list, json.Unmarshal(body, &list)
}

// get returns the body of a path; an error is the API server's own.
func get(ctx context.Context, client rest.Interface, accept string, path ...string) ([]byte, error) {
	result := client.Get().AbsPath(path...).SetHeader("Accept", accept).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

func fromAggregated(all *apidiscoveryv2.APIGroupDiscoveryList) servedKinds {
	found := servedKinds{}
	for _, g := range all.Items {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if r.ResponseKind != nil {
					found.add(schema.GroupVersionKind{Group: g.Name, Version: v.Version, Kind: r.ResponseKind.Kind}, r.Resource)
				}
			}
		}
	}
	return found
}

func (k servedKinds) add(gvk schema.GroupVersionKind, resource string) {
	gk := gvk.GroupKind()
	k[gk] = append(k[gk], gvk.GroupVersion().WithResource(resource))
}

// resource returns what to list for a need: its own version where that is served, else the server's preferred one.
func (k servedKinds) resource(n lbhooks.Need) (schema.GroupVersionResource, bool) {
	of := k[schema.GroupKind{Group: n.Group, Kind: n.Kind}]
	if len(of) == 0 {
		return schema.GroupVersionResource{}, false
	}
	if i := slices.IndexFunc(of, func(r schema.GroupVersionResource) bool { return r.Version == n.Version }); i >= 0 {
		return of[i], true
	}
	return of[0], true
}

// groupVersions lists the group versions that needs name, sorted.
func groupVersions(needs []lbhooks.Need) []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, n := range needs {
		gv := schema.GroupVersion{Group: n.Group, Version: n.Version}
		if isCustom(n) && !slices.Contains(out, gv) {
			out = append(out, gv)
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupVersion) int {
		return slices.Compare([]string{a.Group, a.Version}, []string{b.Group, b.Version})
	})
	return out
}
