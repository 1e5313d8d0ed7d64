package drain

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// unknownTo returns why kube-proxy on the nodes with a replacement has no rules for it yet: what a balancer sends there the
// moment the drained node is out would get no answer. "" where it has, or has had the time.
func (d *run) unknownTo(ctx context.Context, ix view, key guard.Key, on []string) string {
	svc, ok := ix.Service(key)
	raw, there := ix.Snapshot().RawService(key)
	if !ok || !there || !svc.External {
		return ""
	}
	var leaving []*corev1.Node
	for _, name := range d.opts.Nodes {
		if node, ok := ix.Snapshot().RawNode(name); ok {
			leaving = append(leaving, node)
		}
	}
	cover := guard.Cover(svc)
	for _, name := range on {
		node, ok := ix.Snapshot().RawNode(name)
		if !ok || !slices.Contains(cover.Nodes(), name) {
			continue
		}
		known, detail, err := d.proxyOn(name).knows(ctx, lbhooks.Target{Service: raw, Node: node}, leaving)
		if err != nil || !known {
			return detail
		}
	}
	return ""
}

// proxyOn is what is known of the kube-proxy of a node.
func (d *run) proxyOn(node string) *nodeProxy {
	if d.proxies[node] == nil {
		if d.proxies == nil {
			d.proxies = map[string]*nodeProxy{}
		}
		d.proxies[node] = &nodeProxy{Runner: d.Runner, usable: map[guard.Key]time.Time{}}
	}
	return d.proxies[node]
}
