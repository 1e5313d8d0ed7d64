package hookset

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// noHook is the value of the annotation safedrain.dev/hook and of --hook that keeps every hook away.
const noHook = "none"

// Match finds who fronts a Service: the hook that a flag names, else its annotation, else a rule of the configuration,
// else the one specific hook that recognises it, else a generic one. Nodes and times come on top. It always answers.
func (s *Set) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	if !reachable(svc) {
		return none("not reachable from outside")
	}
	r := s.balancer(svc, objects)
	declareNodes(&r, svc, objects)
	declareSettle(&r, svc)
	s.checked(&r)
	s.alone(&r, svc)
	s.settings.ruleOf(svc).times(&r)
	return r
}

// reachable reports whether anything outside can send to the Service at all.
func reachable(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeExternalName:
		return false
	}
	return len(svc.Spec.ExternalIPs) > 0
}

// none is the rotation of a Service whose balancer nobody knows: any node may be in it.
func none(reason string) lbhooks.Rotation {
	return lbhooks.Rotation{
		Reason: reason, Removal: lbhooks.RemovalNone,
		Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true, Why: "no balancer known"},
	}
}

func (s *Set) balancer(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	if name, by := s.named(svc); name != "" {
		return s.asserted(svc, objects, name, by)
	}
	var matched []lbhooks.Rotation
	for _, name := range s.specific {
		if r, ok := s.hooks[name].Match(svc, objects); ok {
			matched = append(matched, r)
		}
	}
	if at := slices.DeleteFunc(slices.Clone(matched), func(r lbhooks.Rotation) bool { return !announces(&r) }); len(at) == 1 {
		matched = at // beside others that announce nothing: a MetalLB that only hands out addresses, which Calico advertises
	}
	switch {
	case len(matched) > 1:
		return conflict(matched)
	case len(matched) == 1:
		return matched[0]
	}
	for _, name := range s.generic {
		if r, ok := s.hooks[name].Match(svc, objects); ok {
			return r
		}
	}
	return none(unmatched(svc))
}

// named returns the hook that a user names for the Service, and how: a flag wins over the annotation, that over a rule.
func (s *Set) named(svc *corev1.Service) (name, by string) {
	if name := s.override[svc.Namespace+"/"+svc.Name]; name != "" {
		return name, "flag --hook"
	}
	if name := s.override[Every]; name != "" {
		return name, "flag --hook"
	}
	if name := strings.TrimSpace(svc.Annotations[lbhooks.AnnotationHook]); name != "" {
		return name, "annotation " + lbhooks.AnnotationHook
	}
	if r := s.settings.ruleOf(svc); r != nil && r.hook != "" {
		return r.hook, r.reason
	}
	return "", ""
}

// asserted asks the hook that the user names, and takes the user's word where the objects do not contradict it.
func (s *Set) asserted(svc *corev1.Service, objects lbhooks.Objects, name, by string) lbhooks.Rotation {
	if name == noHook {
		return none(by + ": " + noHook)
	}
	hook, ok := s.hooks[name]
	if !ok {
		r := none(by)
		r.Hook, r.Broken = name, fmt.Sprintf("%s: %s; hooks of other names come from --config", by, s.settings.unknown())
		return r
	}
	if r, ok := hook.Match(svc, objects); ok {
		r.Reason = by + "; " + r.Reason
		return r
	}
	if a, ok := hook.(lbhooks.Assertable); ok {
		r := a.Assert(svc, objects)
		r.Reason = by
		return r
	}
	r := none(by)
	r.Hook, r.Broken = name, fmt.Sprintf("%s: nothing of %s is seen to front this Service", by, name)
	return r
}

// announces reports whether a balancer is known to send to some node, or to be able to.
func announces(r *lbhooks.Rotation) bool {
	known := func(s lbhooks.Seat) bool { return s.In == lbhooks.Yes || s.In == lbhooks.No && s.Eligible }
	if known(r.Rest) {
		return true
	}
	for _, seats := range []map[string]lbhooks.Seat{r.Seats, r.Shared} {
		for _, s := range seats {
			if known(s) {
				return true
			}
		}
	}
	return false
}

// conflict is the rotation of a Service that two or more specific hooks claim: nobody can tell which is right.
func conflict(matched []lbhooks.Rotation) lbhooks.Rotation {
	r := none("")
	var reasons []string
	for _, m := range matched {
		r.Conflict = append(r.Conflict, m.Hook)
		reasons = append(reasons, m.Hook+": "+m.Reason)
	}
	r.Hook, r.Reason = matched[0].Hook, strings.Join(reasons, "; ")
	r.Evidence = "more than one hook claims the Service; annotation " + lbhooks.AnnotationHook + ", --hook or a rule of --config decides"
	return r
}

// unmatched says why no hook fronts the Service.
func unmatched(svc *corev1.Service) string {
	switch {
	case svc.Spec.LoadBalancerClass != nil:
		return fmt.Sprintf("load balancer class %q, which no hook knows", *svc.Spec.LoadBalancerClass)
	case svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return "type LoadBalancer, and nothing shows who fronts it"
	case svc.Spec.Type == corev1.ServiceTypeNodePort:
		return "type NodePort: whoever knows a node's address may send to it"
	}
	return "externalIPs: whoever routes them decides which node they reach"
}

// broken adds a reason why the hook cannot work.
func broken(r *lbhooks.Rotation, why string) {
	if r.Broken != "" {
		why = r.Broken + "; " + why
	}
	r.Broken = why
}
