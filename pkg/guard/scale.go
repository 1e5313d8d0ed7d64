package guard

import (
	"iter"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// ScaleTarget is a workload that is to be scaled, with what its controller looks at when it chooses the pods that go.
type ScaleTarget struct {
	Kind     string // "Deployment", "ReplicaSet", "StatefulSet", or any other kind with a scale
	Key      Key
	Replicas int32                   // spec.replicas as it is now
	Template *corev1.PodTemplateSpec // nil: not known, and then taken to run on every node

	// Deployment, of that kind: its strategy and status decide how its ReplicaSets share what is left.
	Deployment *appsv1.Deployment
	// ReplicaSets of a Deployment: all that it controls. Of a ReplicaSet: it first, then those of the same controller.
	ReplicaSets []*appsv1.ReplicaSet
	// StatefulSet, of that kind.
	StatefulSet *appsv1.StatefulSet
	// Selector, of any other kind: its pods. Nobody knows which of them such a controller takes.
	Selector labels.Selector

	// Pods of the namespace: at least every one that the workload or one of its ReplicaSets selects, whole, in any order.
	Pods []*corev1.Pod
	// Services behind which the workload stands, of policy Local or not: see Behind.
	Services []*ServiceFacts
	// Autoscalers that scale the workload; nothing but a warning comes of them.
	Autoscalers []Autoscaler
}

// Autoscaler is a HorizontalPodAutoscaler.
type Autoscaler struct {
	Key      Key
	Min, Max int32
	By       string // what owns it and writes its bounds, "ScaledObject/web"; "" where nothing does
}

// Behind returns those of some Services that send to the workload: of its namespace, and either they select its template
// or a slice of theirs names one of its pods.
func (t *ScaleTarget) Behind(services iter.Seq[*ServiceFacts]) []*ServiceFacts {
	own := map[types.UID]bool{}
	for _, p := range t.candidates() {
		own[p.UID] = true
	}
	var out []*ServiceFacts
	for svc := range services {
		if svc.Key.Namespace == t.Key.Namespace && (t.selectedBy(svc) || svc.names(own)) {
			out = append(out, svc)
		}
	}
	return out
}

func (t *ScaleTarget) selectedBy(svc *ServiceFacts) bool {
	return t.Template != nil && len(svc.Selector) > 0 && labels.SelectorFromSet(svc.Selector).Matches(labels.Set(t.Template.Labels))
}

// names reports whether a slice of the Service names one of some pods.
func (s *ServiceFacts) names(pods map[types.UID]bool) bool {
	for i := range s.Ports {
		if slices.ContainsFunc(s.Ports[i].Endpoints, func(e Endpoint) bool { return pods[e.Pod] }) {
			return true
		}
	}
	return false
}

// ScalePlan is the contract of `plan --scale`; victims stand in the order in which they go, all else is sorted.
type ScalePlan struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Workload   ScaledWorkload `json:"workload"`
	Verdict    Verdict        `json:"verdict"` // Safe or Unsafe
	Floor      Floor          `json:"floor"`
	Victims    []Victim       `json:"victims"`
	Keepers    []ScaleKeeper  `json:"keepers"`
	Services   []ServicePlan  `json:"services"`
	Findings   []Finding      `json:"findings"`
}

// ScaledWorkload names a workload, with its spec.replicas and its active pods before and after.
type ScaledWorkload struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Replicas  Count  `json:"replicas"`
	Pods      Count  `json:"pods"` // after: once those that go have gone, before any that comes
}

// Key returns the workload's key.
func (w *ScaledWorkload) Key() Key { return Key{w.Namespace, w.Name} }

// Victim is a pod that the controller takes, or may take.
type Victim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node,omitempty"`
	Goes      Goes      `json:"goes"`
	Why       string    `json:"why,omitempty"` // what puts it before the pods that stay
}

// Goes says how certain it is that a pod goes.
type Goes string

// The values of Victim.Goes. May: the controller itself is undetermined there, or soon decides otherwise.
const (
	Will Goes = "Will"
	May  Goes = "May"
)

// ScaleKeeper is a pod that is among those that stay in a choice of as many victims that empties fewer nodes.
type ScaleKeeper struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	Services  []string  `json:"services"` // names, in its namespace, of those it would keep on the node; sorted
}

// Refused reports whether the scaling may not be carried out as asked.
func (p *ScalePlan) Refused() bool { return verdictRank[p.Verdict] >= verdictRank[Unproven] }

// Clamped is the number of replicas that the floor lets pass in place of what was asked for: never less than was asked
// for, and never more than there are. What empties a node avoidably is judged for the number that is asked for, so a
// caller that stores another judges that one.
func (p *ScalePlan) Clamped() int32 {
	before, after := int32(p.Workload.Replicas.Before), int32(p.Workload.Replicas.After) //nolint:gosec // both were int32
	return max(after, min(before, p.Floor.Value))
}

// Finding returns the plan's finding of that code, about the workload or about a Service, that is gravest; nil when none is.
func (p *ScalePlan) Finding(code Code) *Finding {
	var found *Finding
	look := func(fs []Finding) {
		for i := range fs {
			if fs[i].Code == code && (found == nil || !found.Severity.AtLeast(fs[i].Severity)) {
				found = &fs[i]
			}
		}
	}
	look(p.Findings)
	for i := range p.Services {
		look(p.Services[i].Findings)
	}
	return found
}

// JudgeScale judges a change of a workload's replicas to after: the floor, the pods that its controller will or may take,
// and the nodes in rotation that lose their last endpoint with them. It reads nodes, and the pods that are at hand, from ix.
//
// The verdict is Unsafe, and the plan Refused, when
//   - BelowFloor stands in Findings: after is below Floor.Value and below what there is now; [ScalePlan.Clamped] is what
//     the floor lets pass; or
//   - ScaleEmptiesNode stands with severity Block in the Findings of a Service: the controller empties, or may empty, a node
//     in rotation although another choice of as many victims empties fewer. Then Keepers lists the pods whose staying makes
//     that choice, a complete set: with a deletion cost on each of them the same request no longer empties more than it must.
//
// Scaling up, or to what there is, is never refused and has no victims. Whether 0 is asked for by a human or by a service
// account is the caller's matter, as are rollouts: a ReplicaSet that a Deployment scales is judged like any other here.
//
// The prediction is as good as the pods: every candidate as it is now, whole (conditions, restart counts, annotations).
// now is the time at which the scaling is asked for; what changes within ten seconds from then is taken as undetermined.
// Other workloads behind the same Services count by their endpoints, so of two scalings at once each counts on the other.
//
// The time is that of the endpoints of t.Services and of n log n in the pods, or n² for pods that their controller tells
// apart by UIDs alone.
func JudgeScale(t *ScaleTarget, ix Index, after int32, now time.Time) ScalePlan {
	plan := ScalePlan{
		APIVersion: APIVersion, Kind: KindScalePlan, Verdict: Safe,
		Workload: ScaledWorkload{
			Kind: t.Kind, Namespace: t.Key.Namespace, Name: t.Key.Name, Replicas: Count{Before: int(t.Replicas), After: int(after)},
		},
		Victims: []Victim{}, Keepers: []ScaleKeeper{}, Services: []ServicePlan{}, Findings: []Finding{},
	}
	s := scaling{target: t, ix: ix, after: after, now: now, plan: &plan}
	s.begin()
	s.floors()
	s.victims()
	s.empties()
	s.belowFloor()
	s.autoscalers()
	s.rollout()
	s.conclude()
	return plan
}

// scaling is the work on one plan; it holds what the steps of JudgeScale have in common.
type scaling struct {
	target *ScaleTarget
	ix     Index
	after  int32
	now    time.Time
	plan   *ScalePlan

	judgements []*judgement // of the Services of policy Local, sorted by key
	off        []bool       // of each: its floor is off
	draw       draw         // what the controller takes
}

func (s *scaling) begin() {
	loss := &Loss{Nodes: map[string]bool{}, Flags: &Flags{}}
	for _, svc := range s.target.Services {
		if svc.Local() {
			s.judgements = append(s.judgements, newJudgement(svc, s.ix, loss))
		}
	}
	slices.SortFunc(s.judgements, func(a, b *judgement) int { return a.svc.Key.Compare(b.svc.Key) })
	if s.after < s.target.Replicas {
		s.draw = s.target.draw(s.after, s.now)
	} else {
		s.draw = draw{candidates: s.target.candidates()}
	}
	n := len(s.draw.candidates)
	s.plan.Workload.Pods = Count{Before: n, After: n - s.draw.count}
}

// victims lists the pods that go, in the order of the controller's choice.
func (s *scaling) victims() {
	for _, v := range s.draw.victims() {
		s.plan.Victims = append(s.plan.Victims, Victim{
			Namespace: v.pod.Namespace, Name: v.pod.Name, UID: v.pod.UID, Node: v.pod.Spec.NodeName, Goes: v.goes, Why: v.why,
		})
	}
}

// conclude sorts, and sets the verdict by the gravest finding.
func (s *scaling) conclude() {
	for _, j := range s.judgements {
		sortFindings(j.plan.Findings)
		for _, f := range j.plan.Findings {
			if f.Severity == Block {
				j.worsen(Unsafe)
			}
		}
		s.plan.Services = append(s.plan.Services, j.plan)
		s.plan.Verdict = s.plan.Verdict.Worse(j.plan.Verdict)
	}
	sortFindings(s.plan.Findings)
	for _, f := range s.plan.Findings {
		if f.Severity == Block {
			s.plan.Verdict = Unsafe
		}
	}
}

// title is a workload in a message: "deployment checkout".
func (t *ScaleTarget) title() string { return strings.ToLower(t.Kind) + " " + t.Key.String() }
