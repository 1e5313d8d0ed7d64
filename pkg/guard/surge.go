package guard

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Surge is one more replica of a workload that is started before its pods go, or why none can be.
type Surge struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Services  []string `json:"services"`           // that the pods which go serve, namespace/name, sorted
	By        string   `json:"by,omitempty"`       // what is changed for it: "replicas", "minReplicas of horizontalpodautoscaler/web"
	Replicas  *Count   `json:"replicas,omitempty"` // before, and while the drain runs
	May       string   `json:"mayRun,omitempty"`   // the node on which it may land: a prediction
	Reason    string   `json:"reason,omitempty"`   // why none can be started

	Pods map[types.UID]bool `json:"-"` // of the workload, on the nodes of the request
}

// Key returns the workload's key.
func (s *Surge) Key() Key { return Key{s.Namespace, s.Name} }

// Title names the workload in a message: "deployment shop/web".
func (s *Surge) Title() string { return strings.ToLower(s.Kind) + " " + s.Key().String() }

// Possible reports whether the replica can be started.
func (s *Surge) Possible() bool { return s.Reason == "" }

// advice says what --surge does for a Service that would be left without an endpoint, or why it cannot.
func (s *Surge) advice() string {
	if !s.Possible() {
		return "--surge cannot bring a replacement first: " + s.Title() + ": " + s.Reason
	}
	text := "--surge brings a replacement first: one more replica of " + s.Title()
	if s.May != "" {
		text += ", on " + s.May + " (predicted)"
	}
	return text
}

// surgesOf returns those of some surges that start a replica behind a Service, possible ones first.
func surgesOf(all []Surge, service Key) []*Surge {
	var out []*Surge
	for i := range all {
		if slices.Contains(all[i].Services, service.String()) {
			out = append(out, &all[i])
		}
	}
	slices.SortStableFunc(out, func(a, b *Surge) int { return cmp.Compare(a.Reason, b.Reason) })
	return out
}

// comes returns the replica that is started behind the Service before its pods go; nil when none is.
func (j *judgement) comes() *Surge {
	if of := surgesOf(j.loss.Surges, j.svc.Key); len(of) > 0 && of[0].Possible() {
		return of[0]
	}
	return nil
}

// awaits says that what the loss leaves too little of is started first: the drain judges anew once it is there.
func (j *judgement) awaits(code Code, message string) {
	j.add(Finding{
		Code: code, Severity: Info, Nodes: j.lost,
		Message: message + "; one more replica of " + j.comes().Title() + " is started first",
	})
}

// AdviseSurge says at the findings that stand for want of an endpoint, or of a healthy pod in a budget, that --surge would
// help, where it would.
func (p *DrainPlan) AdviseSurge(surges []Surge) {
	for i := range p.Services {
		s := &p.Services[i]
		of := surgesOf(surges, s.Key())
		if len(of) == 0 || !of[0].Possible() {
			continue
		}
		for k := range s.Findings {
			if f := &s.Findings[k]; (f.Code == LastEndpoint || f.Code == NoEligibleNode) && !f.Accepted {
				f.Advice = of[0].advice()
			}
		}
	}
}

// noneCan returns why no replica can be started behind the Service, where that was asked for; "" otherwise.
func (j *judgement) noneCan() string {
	if of := surgesOf(j.loss.Surges, j.svc.Key); len(of) > 0 && !of[0].Possible() {
		return of[0].advice()
	}
	return ""
}

// surged returns the budgets of a namespace as they are once every replica that is started first is healthy.
func surged(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget, surges []Surge) []*policyv1.PodDisruptionBudget {
	if !slices.ContainsFunc(surges, func(s Surge) bool { return s.Possible() && s.Pods[pod.UID] }) {
		return budgets
	}
	out := slices.Clone(budgets)
	for i, b := range out {
		if selects(b, pod) && b.Status.ObservedGeneration >= b.Generation && cannotBeComputed(b) == "" {
			out[i] = withOneMore(b)
		}
	}
	return out
}

// withOneMore is what the disruption controller makes of a budget when one more healthy pod is under it.
//
// Source: getExpectedPodCount and updatePdbStatus in k8s.io/kubernetes/pkg/controller/disruption/disruption.go.
func withOneMore(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	b = b.DeepCopy()
	s := &b.Status
	s.CurrentHealthy++
	s.ExpectedPods++
	expected := int(s.ExpectedPods)
	switch {
	case b.Spec.MaxUnavailable != nil:
		if n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, expected, true); err == nil {
			s.DesiredHealthy = int32(max(0, expected-n)) //nolint:gosec // of numbers that are int32
		}
	case b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String:
		if n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, expected, true); err == nil {
			s.DesiredHealthy = int32(n) //nolint:gosec // of numbers that are int32
		}
	}
	s.DisruptionsAllowed = max(0, s.CurrentHealthy-s.DesiredHealthy)
	return b
}

// LeastMissed picks, of the pods of a workload of which one is to go, the one whose end costs least: one whose node is gone;
// else one whose node no balancer sends to, or that has another endpoint there of each Service; among these, and where
// there is none, the youngest. It returns nil where a pod that is not Ready is there: controllers take that one first.
func LeastMissed(pods []*corev1.Pod, services []*ServiceFacts, ix Index) *corev1.Pod {
	for _, p := range pods {
		if _, there := ix.Node(p.Spec.NodeName); !there && p.Spec.NodeName != "" && active(p) {
			return p
		}
	}
	var best *corev1.Pod
	free := false
	for _, p := range pods {
		if !active(p) {
			continue
		}
		if !PodReady(p) {
			return nil
		}
		mine := missesNobody(p, services)
		if best == nil || mine && !free || mine == free && younger(p, best) {
			best, free = p, mine
		}
	}
	return best
}

func younger(a, b *corev1.Pod) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name > b.Name
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// missesNobody reports whether no balancer sends to the node of a pod for want of another endpoint there.
func missesNobody(p *corev1.Pod, services []*ServiceFacts) bool {
	for _, svc := range services {
		if !svc.External || svc.Rotation.Nobody || svc.Rotation.Seat(p.Spec.NodeName).In == No {
			continue
		}
		for i := range svc.Ports {
			own, others := false, false
			for _, e := range svc.Ports[i].Endpoints {
				own = own || e.Pod == p.UID
				others = others || e.Pod != p.UID && e.Node == p.Spec.NodeName && e.Ready && !e.Terminating
			}
			if own && !others {
				return false
			}
		}
	}
	return true
}
