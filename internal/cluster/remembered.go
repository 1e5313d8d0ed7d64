package cluster

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// knownDaemonSets returns the DaemonSets of an earlier load, nil when there was none that could list them.
func (c *Clients) knownDaemonSets() map[guard.Key]*appsv1.DaemonSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.daemonSets
}

func (c *Clients) rememberDaemonSets(all []*appsv1.DaemonSet) {
	known := make(map[guard.Key]*appsv1.DaemonSet, len(all))
	for _, d := range all {
		known[guard.Key{Namespace: d.Namespace, Name: d.Name}] = d
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemonSets = known
}

// hasNoAgents reports whether an earlier load found no pod of a hook: a balancer does not come while a node is drained.
func (c *Clients) hasNoAgents(selector string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noAgents[selector]
}

func (c *Clients) rememberNoAgents(selector string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noAgents == nil {
		c.noAgents = map[string]bool{}
	}
	c.noAgents[selector] = true
}

// isAllowed reports whether an earlier load was told that the user has a permission. A drain looks at the cluster often,
// and a permission that goes meanwhile is found out by the call that needs it.
func (c *Clients) isAllowed(permission string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.allowed[permission]
}

func (c *Clients) rememberAllowed(permission string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.allowed == nil {
		c.allowed = map[string]bool{}
	}
	c.allowed[permission] = true
}

// newDaemonSets lists the DaemonSets anew when a pod names one that no earlier load saw.
func (l *loader) newDaemonSets(ctx context.Context, pods []*corev1.Pod) error {
	for _, p := range pods {
		owner := metav1.GetControllerOf(p)
		if owner == nil || owner.Kind != "DaemonSet" || l.remembered[guard.Key{Namespace: p.Namespace, Name: owner.Name}] != nil {
			continue
		}
		l.again.Do(func() { l.againErr = l.daemonSets(ctx) })
		return l.againErr
	}
	return nil
}
