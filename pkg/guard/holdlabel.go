package guard

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// labelChoice is one key of a Service's selector, and who would notice that the pods' value of it changes.
type labelChoice struct {
	key      string
	releases []string // ReplicaSets that would release pods
	unknown  []string // ReplicaSets whose selector is not known
	policies []string // NetworkPolicies
	services []string // further Services that kube-proxy serves
	headless []string
	budgets  []string
}

func (c *labelChoice) exact() bool { return len(c.releases) == 0 }

// named says who notices the change, "" when nobody but the Service does.
func (c *labelChoice) named() string {
	var parts []string
	say := func(names []string, text string) {
		if len(names) > 0 {
			parts = append(parts, strings.ReplaceAll(text, "%", strings.Join(names, ", ")))
		}
	}
	say(c.releases, "ReplicaSet % lets the pods go and replaces them at once, so it goes only forward")
	say(c.services, "Service % selects by it too and is served on by slices of safedrain's own")
	say(c.headless, "headless Service % no longer lists the pods")
	say(c.budgets, "budget % no longer counts the pods")
	return strings.Join(parts, "; ")
}

// compare orders choices: undone exactly first, then those that the fewest notice, then by name.
func (c *labelChoice) compare(o *labelChoice) int {
	return cmp.Or(
		cmp.Compare(len(c.releases), len(o.releases)),
		cmp.Compare(len(c.budgets), len(o.budgets)),
		cmp.Compare(len(c.services)+len(c.headless), len(o.services)+len(o.headless)),
		strings.Compare(c.key, o.key),
	)
}

// chooseLabel returns the best key of the Service's selector to change, or what stands against each. A key that pods were
// held by already is kept.
func (j *judgement) chooseLabel(pods []*corev1.Pod, facts *HoldFacts) (*labelChoice, []string) {
	keys := sortedKeys(j.svc.Selector)
	for _, pod := range pods {
		h, held := HeldOf(pod)
		if mine := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { _, ok := h.Labels[k]; return !ok }); held && len(mine) > 0 {
			keys = mine
		}
	}
	var fine []*labelChoice
	var against []string
	for _, key := range keys {
		c := j.lookAt(key, pods, facts)
		switch {
		case len(c.unknown) > 0:
			against = append(against, "the selector of ReplicaSet "+strings.Join(c.unknown, ", ")+" is not known")
		case len(c.policies) > 0:
			against = append(against, "NetworkPolicy "+strings.Join(c.policies, ", ")+" selects by label "+key)
		default:
			fine = append(fine, c)
		}
	}
	if len(fine) == 0 {
		slices.Sort(against)
		return nil, slices.Compact(against)
	}
	return slices.MinFunc(fine, func(a, b *labelChoice) int { return a.compare(b) }), nil
}

// lookAt finds who would notice that a label of the pods changes.
func (j *judgement) lookAt(key string, pods []*corev1.Pod, facts *HoldFacts) *labelChoice {
	c := &labelChoice{key: key}
	note := func(list *[]string, name string, when bool) {
		if when && !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	for _, pod := range pods {
		before := LabelsBefore(pod)
		after := maps.Clone(before)
		after[key] = HeldValue(pod.UID)
		if owner := metav1.GetControllerOf(pod); owner != nil {
			selector, known := facts.Owners[owner.UID]
			note(&c.unknown, owner.Name, !known)
			note(&c.releases, owner.Name, known && notices(selector, before, after))
		} else if h, held := HeldOf(pod); held {
			note(&c.releases, "of "+pod.Name, h.Forward)
		}
		for _, p := range facts.Policies {
			note(&c.policies, p.Namespace+"/"+p.Name, policyNotices(p, pod.Namespace, before, after))
		}
		for _, svc := range facts.Headless {
			note(&c.headless, svc.Namespace+"/"+svc.Name, Selects(svc.Spec.Selector, before) && !Selects(svc.Spec.Selector, after))
		}
		for b := range j.ix.Budgets(pod.Namespace) {
			note(&c.budgets, b.Namespace+"/"+b.Name, budgetNotices(b, before, after))
		}
		for svc := range j.ix.ServicesOn(pod.Spec.NodeName) {
			other := svc.Key != j.svc.Key && svc.Key.Namespace == pod.Namespace
			note(&c.services, svc.Key.String(), other && Selects(svc.Selector, before) && !Selects(svc.Selector, after))
		}
	}
	return c
}

// notices reports whether a selector selects labels and no longer would, or the other way round.
func notices(selector *metav1.LabelSelector, before, after map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err != nil || s.Matches(labels.Set(before)) != s.Matches(labels.Set(after))
}

func budgetNotices(b *policyv1.PodDisruptionBudget, before, after map[string]string) bool {
	return b.Spec.Selector != nil && notices(b.Spec.Selector, before, after)
}

// policyNotices reports whether a NetworkPolicy selects pods of a namespace by the label, as its own pods or as peers.
func policyNotices(p *networkingv1.NetworkPolicy, namespace string, before, after map[string]string) bool {
	if p.Namespace == namespace && notices(&p.Spec.PodSelector, before, after) {
		return true
	}
	peer := func(peers []networkingv1.NetworkPolicyPeer) bool {
		return slices.ContainsFunc(peers, func(peer networkingv1.NetworkPolicyPeer) bool {
			// Which namespaces a namespaceSelector means is not known here: it may mean this one.
			here := peer.NamespaceSelector != nil || p.Namespace == namespace
			return here && peer.PodSelector != nil && notices(peer.PodSelector, before, after)
		})
	}
	return slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool { return peer(r.From) }) ||
		slices.ContainsFunc(p.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool { return peer(r.To) })
}
