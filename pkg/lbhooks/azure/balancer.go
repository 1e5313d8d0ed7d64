package azure

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// balancer is what a Service has at Azure: rules of one or two load balancers, and the pools that they send to.
type balancer struct {
	place
	rules []part // sorted
	pools []part // sorted, each once
	until time.Time
	uid   string
}

// place is where load balancers are.
type place struct{ subscription, group string }

// part is a rule or a backend pool of a load balancer; id is its resource ID, which says all of it.
type part struct{ group, balancer, name, id string }

func (p part) compare(o part) int { return strings.Compare(p.id, o.id) }

// memory is how long what was found is not looked for again.
const memory = time.Minute

func keyOf(svc *corev1.Service) string { return svc.Namespace + "/" + svc.Name }

// place tells subscription and resource group: by option, else by the node.
func (h *Hook) place(m machine) place {
	p := place{m.subscription, m.group}
	if h.options.Has(optionSubscription) {
		p.subscription = h.options.Text(optionSubscription)
	}
	if h.options.Has(optionGroup) {
		p.group = h.options.Text(optionGroup)
	}
	return p
}

// balancer finds a Service's rules and pools, and remembers them for a minute.
func (h *Hook) balancer(ctx context.Context, t lbhooks.Target, m machine) (*balancer, error) {
	h.mu.Lock()
	b := h.found[keyOf(t.Service)]
	h.mu.Unlock()
	if b != nil && b.uid == string(t.Service.UID) && b.place == h.place(m) && time.Now().Before(b.until) {
		return b, nil
	}
	b, err := h.find(ctx, t.Service, h.place(m))
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

// rulePrefix begins the names of a Service's rules: cloud-provider-azure getLoadBalancerRuleName, over cloud-provider's
// DefaultLoadBalancerName.
func rulePrefix(svc *corev1.Service) string {
	name := "a" + strings.ReplaceAll(string(svc.UID), "-", "")
	return name[:min(len(name), 32)] + "-"
}

// find lists the load balancers of the resource group, over all pages, and picks the rules that bear the Service's name.
func (h *Hook) find(ctx context.Context, svc *corev1.Service, at place) (*balancer, error) {
	clients, err := h.api.in(at.subscription)
	if err != nil {
		return nil, err
	}
	b := &balancer{place: at}
	pools := map[string]part{}
	pages := clients.NewLoadBalancersClient().NewListPager(at.group, nil)
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, failed(ctx, actionBalancers, fmt.Sprintf("/subscriptions/%s/resourceGroups/%s", at.subscription, at.group), err)
		}
		for _, lb := range page.Value {
			b.add(lb, rulePrefix(svc), pools)
		}
	}
	if len(b.rules) == 0 || len(pools) == 0 {
		return nil, fmt.Errorf("%s: no load balancing rule %s* with a backend pool in resource group %s: say where by --hook-option azure.resource-group=NAME",
			Name, rulePrefix(svc), at.group)
	}
	for _, pool := range pools {
		b.pools = append(b.pools, pool)
	}
	slices.SortFunc(b.rules, part.compare)
	slices.SortFunc(b.pools, part.compare)
	return b, nil
}

// add takes the rules of one load balancer whose names begin with the prefix, and their pools.
func (b *balancer) add(lb *armnetwork.LoadBalancer, prefix string, pools map[string]part) {
	if lb == nil || lb.Properties == nil {
		return
	}
	for _, rule := range lb.Properties.LoadBalancingRules {
		if rule == nil || rule.Properties == nil || !strings.HasPrefix(strings.ToLower(ptr.Deref(rule.Name, "")), prefix) {
			continue
		}
		if p, ok := partOf(ptr.Deref(rule.ID, "")); ok {
			b.rules = append(b.rules, p)
		}
		for _, ref := range append(slices.Clone(rule.Properties.BackendAddressPools), rule.Properties.BackendAddressPool) {
			if p, ok := partOf(idOf(ref)); ok {
				pools[strings.ToLower(p.id)] = p
			}
		}
	}
}

func idOf(r *armnetwork.SubResource) string {
	if r == nil {
		return ""
	}
	return ptr.Deref(r.ID, "")
}

// partOf reads the resource ID of a rule or a pool.
func partOf(id string) (part, bool) {
	parsed, err := arm.ParseResourceID(id)
	if err != nil || parsed.Parent == nil {
		return part{}, false
	}
	return part{group: parsed.ResourceGroupName, balancer: parsed.Parent.Name, name: parsed.Name, id: id}, true
}
