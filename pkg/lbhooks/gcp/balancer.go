package gcp

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// balancer is the load balancer of a Service as Google has it: a backend service with its groups, or a target pool with its
// instances.
type balancer struct {
	place
	name   string
	groups []string // URLs of NEGs and instance groups
	pool   bool
	until  time.Time
	uid    string
}

// place is where a load balancer is.
type place struct{ project, region string }

func (p place) resource(kind, name string) string {
	return fmt.Sprintf("projects/%s/regions/%s/%s/%s", p.project, p.region, kind, name)
}

// memory is how long what was found is not looked for again.
const memory = time.Minute

// place tells project and region: by option, else by the node.
func (h *Hook) place(at instance) place {
	p := place{at.project, at.region()}
	if h.options.Has(optionProject) {
		p.project = h.options.Text(optionProject)
	}
	if h.options.Has(optionRegion) {
		p.region = h.options.Text(optionRegion)
	}
	return p
}

func keyOf(svc *corev1.Service) string { return svc.Namespace + "/" + svc.Name }

// balancer finds the load balancer of a Service, and remembers it for a minute. Of a target
// pool only the name is: its members are the proof itself.
func (h *Hook) balancer(ctx context.Context, t lbhooks.Target, at instance) (*balancer, error) {
	h.mu.Lock()
	b := h.found[keyOf(t.Service)]
	h.mu.Unlock()
	if b != nil && b.uid == string(t.Service.UID) && b.place == h.place(at) && time.Now().Before(b.until) {
		return b, nil
	}
	b, err := h.find(ctx, t.Service, h.place(at))
	if err != nil {
		return nil, err
	}
	b.until, b.uid = time.Now().Add(memory), string(t.Service.UID)
	h.mu.Lock()
	h.found[keyOf(t.Service)] = b
	h.mu.Unlock()
	return b, nil
}

func (h *Hook) forget(svc *corev1.Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.found, keyOf(svc))
}

// find reads the backend service that the annotation names; without one, that of the cloud provider's name for an internal
// balancer, else its target pool.
func (h *Hook) find(ctx context.Context, svc *corev1.Service, at place) (*balancer, error) {
	b := &balancer{place: at, name: svc.Annotations[annotationBackend]}
	if b.name == "" {
		b.name = legacyName(svc)
		b.pool = !strings.EqualFold(svc.Annotations[annotationType], "internal")
	}
	if b.pool {
		return b, nil
	}
	var answer backendService
	if err := h.api.do(ctx, call{path: at.resource("backendServices", b.name), permission: permissionBackends}, &answer); err != nil {
		return nil, err
	}
	for _, backend := range answer.Backends {
		b.groups = append(b.groups, backend.Group)
	}
	return b, nil
}

// legacyName is the name that the cloud provider gives to a Service's balancer: cloud-provider cloud.go,
// DefaultLoadBalancerName.
func legacyName(svc *corev1.Service) string {
	name := "a" + strings.ReplaceAll(string(svc.UID), "-", "")
	return name[:min(len(name), 32)]
}

// group is a NEG or an instance group, read from its URL.
type group struct {
	url, project, zone, kind, name string
}

func readGroup(url string) (group, bool) {
	_, path, ok := strings.Cut(url, "/projects/")
	parts := strings.Split(path, "/")
	if !ok || len(parts) != 5 {
		return group{}, false
	}
	g := group{url: url, project: parts[0], zone: parts[2], kind: parts[3], name: parts[4]}
	return g, parts[1] == "zones" && (g.kind == kindNEG || g.kind == kindInstances)
}

// Kinds of groups in their URLs.
const (
	kindNEG       = "networkEndpointGroups"
	kindInstances = "instanceGroups"
)

// member reports whether an instance is in a group of its own zone, over the pages of the group's list.
func (h *Hook) member(ctx context.Context, g group, at instance) (bool, error) {
	ask := call{
		path:       fmt.Sprintf("projects/%s/zones/%s/%s/%s/listInstances", g.project, g.zone, g.kind, g.name),
		permission: permissionInstances, body: map[string]string{"instanceState": "ALL"}, query: url.Values{},
	}
	if g.kind == kindNEG {
		ask.path = fmt.Sprintf("projects/%s/zones/%s/%s/%s/listNetworkEndpoints", g.project, g.zone, g.kind, g.name)
		ask.permission, ask.body = permissionNEGs, map[string]string{"healthStatus": "SKIP"}
	}
	for {
		var page memberPage
		if err := h.api.do(ctx, ask, &page); err != nil {
			return false, err
		}
		for i := range page.Items {
			if at.is(page.Items[i].Instance, g.zone) || at.is(page.Items[i].NetworkEndpoint.Instance, g.zone) {
				return true, nil
			}
		}
		if page.NextPageToken == "" {
			return false, nil
		}
		ask.query.Set("pageToken", page.NextPageToken)
	}
}
