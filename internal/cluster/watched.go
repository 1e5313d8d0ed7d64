package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Watch is one kind of object that hooks read, for whoever follows a live cluster.
type Watch struct {
	Kind     schema.GroupKind
	Resource schema.GroupVersionResource
	Labels   string // selector; of the agents of a hook, which are pods
	Fields   string // selector
}

// Watched is what hooks read in a cluster.
type Watched struct {
	Watches []Watch // sorted as the hooks are; each once
	// Unavailable says, by kind, why objects that a hook reads cannot be had: not served, or forbidden.
	Unavailable map[schema.GroupKind]string
}

// Watched finds out what hooks read in this cluster and whether that may be listed. Unlike [Load] it asks the API server anew
// each time, since the kinds of a balancer may come while somebody watches.
func (c *Clients) Watched(ctx context.Context, hooks []lbhooks.Description) (Watched, error) {
	out := Watched{Unavailable: map[schema.GroupKind]string{}}
	var all []lbhooks.Need
	for _, d := range hooks {
		all = append(all, d.Needs...)
	}
	served, err := c.discover(ctx, all)
	if err != nil {
		return out, err
	}
	needs, unserved := servedNeeds(hooks, served)
	for gk := range unserved {
		out.Unavailable[gk] = notServed(gk)
	}
	run := map[string]bool{}
	ask := func(n lbhooks.Need) error {
		w := watchOf(n, served)
		found, err := c.may(ctx, w)
		switch {
		case apierrors.IsForbidden(err):
			out.Unavailable[w.Kind] = "not allowed to " + verbOf(n, w.Resource.Resource).String()
			return nil
		case apierrors.IsNotFound(err): // its CRD went away after it was asked for
			out.Unavailable[w.Kind] = notServed(w.Kind)
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", verbOf(n, w.Resource.Resource), err)
		}
		run[n.Labels] = found
		out.Watches = append(out.Watches, w)
		return nil
	}
	for _, n := range needs {
		if err := ask(n); err != nil {
			return out, err
		}
	}
	for _, n := range leasesNeeded(hooks, served, func(selector string) bool { return run[selector] }) {
		if err := ask(n); err != nil {
			return out, err
		}
	}
	return out, nil
}

func watchOf(n lbhooks.Need, served servedKinds) Watch {
	w := Watch{Kind: schema.GroupKind{Group: n.Group, Kind: n.Kind}}
	if isAgents(n) {
		w.Resource, w.Labels = corev1.SchemeGroupVersion.WithResource("pods"), n.Labels
		return w
	}
	w.Resource, _ = served.resource(n)
	if isLeases(n) {
		w.Fields = fields.OneTermNotEqualSelector("metadata.namespace", corev1.NamespaceNodeLease).String()
	}
	return w
}

// may lists one object of a kind, which is allowed or not, and reports whether there is one.
func (c *Clients) may(ctx context.Context, w Watch) (bool, error) {
	opts := metav1.ListOptions{LabelSelector: w.Labels, FieldSelector: w.Fields, Limit: 1}
	if w.Labels != "" {
		list, err := c.Kubernetes.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
		return err == nil && len(list.Items) > 0, err
	}
	list, err := c.Dynamic.Resource(w.Resource).List(ctx, opts)
	return err == nil && len(list.Items) > 0, err
}
