package cluster

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// builtIn reports whether a group is Kubernetes' own.
func builtIn(group string) bool {
	switch group {
	case "", "apps", "batch", "autoscaling", "policy", "extensions":
		return true
	default:
		return strings.HasSuffix(group, ".k8s.io") && !strings.Contains(group, ".x-k8s.io")
	}
}

// kindLease is the one built-in kind that hooks read as they read custom ones.
var kindLease = schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}

// isCustom reports whether a need is for objects that are listed for hooks alone.
func isCustom(n lbhooks.Need) bool {
	gk := schema.GroupKind{Group: n.Group, Kind: n.Kind}
	return (!builtIn(n.Group) || gk == kindLease) && mayList(n)
}

// isAgents reports whether a need selects the pods of a hook.
func isAgents(n lbhooks.Need) bool {
	return n.Group == "" && n.Kind == "Pod" && n.Labels != "" && mayList(n)
}

func isLeases(n lbhooks.Need) bool {
	return schema.GroupKind{Group: n.Group, Kind: n.Kind} == kindLease && mayList(n)
}

func mayList(n lbhooks.Need) bool { return len(n.Verbs) == 0 || slices.Contains(n.Verbs, "list") }

// hooks lists what the hooks need: each kind and each label selector once. The agents of a hook whose kinds are not
// served at all are not looked for.
func (l *loader) hooks(ctx context.Context, hooks []lbhooks.Description) error {
	l.into.agents = map[string][]*corev1.Pod{}
	if l.clients.Dynamic == nil {
		return nil
	}
	var needs []lbhooks.Need
	for _, d := range hooks {
		needs = append(needs, d.Needs...)
	}
	if !slices.ContainsFunc(needs, isCustom) && !slices.ContainsFunc(needs, isAgents) {
		return nil
	}
	served, err := l.clients.kinds(ctx, needs)
	if apierrors.IsForbidden(err) {
		l.deny(Verb{Verb: "get", Resource: "/apis", Needed: true, Why: "which balancers there are"}, err)
		return nil
	}
	if err != nil {
		return err
	}
	list := func(needs []lbhooks.Need) error {
		group, gctx := errgroup.WithContext(ctx)
		group.SetLimit(maxParallel)
		for _, n := range needs {
			group.Go(func() error {
				if isAgents(n) {
					return l.agentPods(gctx, n)
				}
				resource, _ := served.resource(n)
				return l.custom(gctx, n, resource)
			})
		}
		return group.Wait()
	}
	if err := list(l.needed(hooks, served)); err != nil {
		return err
	}
	return list(l.leases(hooks, served))
}

// leases lists the need for Leases; see leasesNeeded.
func (l *loader) leases(hooks []lbhooks.Description, served servedKinds) []lbhooks.Need {
	return leasesNeeded(hooks, served, func(selector string) bool { return len(l.into.agents[selector]) > 0 })
}

// leasesNeeded lists the need for Leases, once, where a hook that reads them is at work: a kind of its own is served or, as
// some have none, its agents run. Every cluster has Leases, of every node one and more.
func leasesNeeded(hooks []lbhooks.Description, served servedKinds, run func(selector string) bool) []lbhooks.Need {
	for _, d := range hooks {
		i := slices.IndexFunc(d.Needs, isLeases)
		if i < 0 || !slices.ContainsFunc(d.Needs, func(n lbhooks.Need) bool {
			if isCustom(n) && !isLeases(n) {
				_, ok := served.resource(n)
				return ok
			}
			return isAgents(n) && run(n.Labels)
		}) {
			continue
		}
		if _, ok := served.resource(d.Needs[i]); ok {
			return d.Needs[i : i+1]
		}
	}
	return nil
}

// needed lists the needs to list, each once, and records the kinds that are not served.
func (l *loader) needed(hooks []lbhooks.Description, served servedKinds) []lbhooks.Need {
	l.into.custom = map[schema.GroupKind][]*unstructured.Unstructured{}
	needs, unserved := servedNeeds(hooks, served)
	l.into.unserved = unserved
	return needs
}

// servedNeeds lists the needs that a cluster can meet, each once, and the kinds that it does not serve. The agents of a hook
// whose kinds are not served at all are not looked for.
func servedNeeds(hooks []lbhooks.Description, served servedKinds) (needs []lbhooks.Need, unserved map[schema.GroupKind]bool) {
	unserved = map[schema.GroupKind]bool{}
	seen := map[string]bool{}
	for _, d := range hooks {
		present, absent := false, false
		for _, n := range d.Needs {
			if !isCustom(n) || isLeases(n) {
				continue
			}
			gk := schema.GroupKind{Group: n.Group, Kind: n.Kind}
			if _, ok := served.resource(n); !ok {
				unserved[gk] = true
				absent = true
				continue
			}
			present = true
			if !seen[gk.String()] {
				seen[gk.String()] = true
				needs = append(needs, n)
			}
		}
		for _, n := range d.Needs {
			if isAgents(n) && (present || !absent) && !seen["agents "+n.Labels] {
				seen["agents "+n.Labels] = true
				needs = append(needs, n)
			}
		}
	}
	return needs, unserved
}

// verbOf is the permission that a need of a hook is about; it is never needed as a whole.
func verbOf(n lbhooks.Need, resource string) Verb {
	return Verb{Verb: "list", Resource: resource, Group: n.Group, Why: n.Why, kind: schema.GroupKind{Group: n.Group, Kind: n.Kind}}
}

func (l *loader) agentPods(ctx context.Context, n lbhooks.Need) error {
	if l.clients.hasNoAgents(n.Labels) {
		return nil
	}
	kept, err := l.podPages(ctx, verbOf(n, "pods"), metav1.ListOptions{LabelSelector: n.Labels})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.into.agents[n.Labels] = kept
	if err == nil && len(kept) == 0 {
		l.clients.rememberNoAgents(n.Labels)
	}
	return err
}

func (l *loader) custom(ctx context.Context, n lbhooks.Need, resource schema.GroupVersionResource) error {
	gk := schema.GroupKind{Group: n.Group, Kind: n.Kind}
	var kept []*unstructured.Unstructured
	opts := metav1.ListOptions{}
	if isLeases(n) {
		opts.FieldSelector = fields.OneTermNotEqualSelector("metadata.namespace", corev1.NamespaceNodeLease).String()
	}
	err := l.pages(ctx, verbOf(n, resource.Resource), opts, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Dynamic.Resource(resource).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			kept = append(kept, trimCustom(&page.Items[i]))
		}
		return page.GetContinue(), nil
	}, func() { kept = nil })
	l.mu.Lock()
	defer l.mu.Unlock()
	if apierrors.IsNotFound(err) { // its CRD went away after it was asked for
		l.into.unserved[gk] = true
		return nil
	}
	l.into.custom[gk] = kept
	return err
}
