package guard

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// Kinds of workloads, and the values of Rollout.Type.
const (
	kindDeployment  = "Deployment"
	kindStatefulSet = "StatefulSet"
	kindDaemonSet   = "DaemonSet"

	rolloutRolling  = "RollingUpdate"
	rolloutRecreate = "Recreate"
)

// Hazard is a setting that makes blackholes, of a workload behind a Service or of the Service itself.
type Hazard struct {
	Code       Code
	Service    Key
	Workload   *Workload   // nil where the Service itself is meant
	Nodes      []string    // that it is about
	Traffic    int         // nodes that the balancer sends to or may
	Pins       []string    // of PlacementPinned: labels by which the node selector keeps those nodes out, sorted
	Affinity   bool        // of PlacementPinned: the required node affinity keeps some of them out
	Autoscaler *Autoscaler // of AutoscalerBelowFloor
	Floor      int32       // of AutoscalerBelowFloor
}

// audited is the work on one Service of an audit.
type audited struct {
	*judgement
	ground    *placement.Cluster
	traffic   []*NodeFacts
	workloads []*Workload // behind the Service, sorted
	hazards   []Hazard
}

func newAudited(j *judgement, ground *placement.Cluster) *audited {
	a := &audited{judgement: j, ground: ground}
	if j.svc.External {
		a.traffic = j.trafficNodes()
	}
	for w := range j.ix.Workloads(j.svc.Key.Namespace) {
		if behind(j.svc, w) {
			a.workloads = append(a.workloads, w)
		}
	}
	return a
}

func (a *audited) hazard(h Hazard) {
	h.Service, h.Traffic = a.svc.Key, len(a.traffic)
	a.hazards = append(a.hazards, h)
}

// groundOf is the bare cluster: nodes with their labels and taints, and nothing on them. A cordon is no setting of a
// workload, so it is not seen.
func groundOf(ix Index) *placement.Cluster {
	c := &placement.Cluster{Volumes: &placement.Volumes{}}
	for n := range ix.Nodes() {
		if n.leaves("") || n.Virtual {
			continue
		}
		c.Nodes = append(c.Nodes, placement.Node{Whole: true, Object: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels},
			Spec: corev1.NodeSpec{Taints: slices.DeleteFunc(slices.Clone(n.Taints), func(t corev1.Taint) bool {
				return strings.HasPrefix(t.Key, "node.kubernetes.io/")
			})},
		}})
	}
	return c
}

// podsOf is how many Ready endpoints a workload has on each node. Where several workloads are behind the Service, a pod is
// of the one whose name its own begins with, the longest.
func (a *audited) podsOf(w *Workload) map[string]int {
	out, seen := map[string]int{}, map[string]bool{}
	for i := range a.cover.ports {
		for node, l := range a.cover.ports[i].local {
			for _, e := range l.ready {
				id := cmp.Or(string(e.Pod), e.Addr.String())
				if !seen[id] && a.ownerOf(&e) == w {
					seen[id] = true
					out[node]++
				}
			}
		}
	}
	return out
}

func (a *audited) ownerOf(e *Endpoint) *Workload {
	if len(a.workloads) == 1 {
		return a.workloads[0]
	}
	var of *Workload
	for _, w := range a.workloads {
		if strings.HasPrefix(e.PodKey.Name, w.Key.Name+"-") && (of == nil || len(w.Key.Name) > len(of.Key.Name)) {
			of = w
		}
	}
	return of
}

// revisionLabel is the label by which the pods of one template differ from those of the next.
func (w *Workload) revisionLabel() string {
	if w.Kind == kindDeployment {
		return "pod-template-hash"
	}
	return "controller-revision-hash"
}

// pod is a pod of the workload's template, of a revision: what says where it can go, without what is on the node.
func (w *Workload) pod(revision string) *corev1.Pod {
	labels := maps.Clone(w.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[w.revisionLabel()] = revision
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Key.Namespace, Labels: labels}, Spec: *w.Spec.DeepCopy()}
	s := &p.Spec
	s.NodeName, s.SchedulerName, s.Volumes, s.ResourceClaims, s.SchedulingGates, s.SchedulingGroup = "", "", nil, nil, nil, nil
	if s.Affinity != nil {
		if near := s.Affinity.PodAffinity; near != nil {
			mergeKeys(near.RequiredDuringSchedulingIgnoredDuringExecution, labels)
		}
		if far := s.Affinity.PodAntiAffinity; far != nil {
			mergeKeys(far.RequiredDuringSchedulingIgnoredDuringExecution, labels)
		}
	}
	return p
}

// mergeKeys writes matchLabelKeys and mismatchLabelKeys into the selectors of terms, as the API server does when it takes a
// pod.
//
// Source: applyMatchLabelKeysAndMismatchLabelKeys in k8s.io/kubernetes/pkg/registry/core/pod/strategy.go.
func mergeKeys(terms []corev1.PodAffinityTerm, of map[string]string) {
	for i := range terms {
		t := &terms[i]
		if t.LabelSelector == nil {
			continue
		}
		add := func(keys []string, operator metav1.LabelSelectorOperator) {
			for _, k := range keys {
				if v, ok := of[k]; ok {
					t.LabelSelector.MatchExpressions = append(t.LabelSelector.MatchExpressions,
						metav1.LabelSelectorRequirement{Key: k, Operator: operator, Values: []string{v}})
				}
			}
		}
		add(t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		add(t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
}

// oneMore says where a pod of a workload's next template could go while all pods of this one are there: those that run
// where they are, the others where they would fit.
func (a *audited) oneMore(w *Workload, at map[string]int) placement.Answer {
	state, giveBack := a.ground.Lend()
	defer giveBack()
	old := w.pod("old")
	missing := int(w.Replicas)
	for _, node := range sortedKeys(at) {
		for range at[node] {
			state.Place(old, node)
			missing--
		}
	}
	if missing > 0 {
		state.PlaceAll(slices.Repeat([]*corev1.Pod{old}, missing))
	}
	return state.Candidates(w.pod("new"))
}

// hostPorts reports whether the pods of a template take ports of their host, so that no two share a node.
func hostPorts(spec *corev1.PodSpec) bool {
	for i := range spec.Containers {
		for _, p := range spec.Containers[i].Ports {
			if p.HostPort > 0 {
				return true
			}
		}
	}
	return spec.HostNetwork
}
