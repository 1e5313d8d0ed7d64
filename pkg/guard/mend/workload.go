package mend

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

const (
	kindDeployment  = "Deployment"
	kindStatefulSet = "StatefulSet"
	kindDaemonSet   = "DaemonSet"
	rollingUpdate   = "RollingUpdate"
)

// revision is the label by which the pods of a Deployment's revisions differ.
const revision = "pod-template-hash"

// workload is the work on one workload.
type workload struct {
	*guard.Workload
	target   Target
	found    map[guard.Code]bool
	services []guard.Key
	traffic  int
	pins     []string // as in guard.Hazard
	pinned   bool     // by its node affinity

	mends    []guard.Code
	template map[string]any // of spec.template.spec
	spec     map[string]any // beside the template
	first    map[string]any // the strategy of the first step
	notes    []string
}

// mend adds the patch of the workload, and what no patch mends.
func (w *workload) mend(f *Fixes) {
	w.template, w.spec = map[string]any{}, map[string]any{}
	without := map[string][]guard.Code{}
	for _, fix := range []struct {
		code guard.Code
		mend func() (why string) // why no patch is safe; "" when there is one
	}{
		{guard.PlacementPinned, w.unpin},
		{guard.SpreadMissing, w.spread},
		{guard.SpreadCountsTainted, w.honorTaints},
		{guard.RolloutDeadlock, w.unlock},
		{guard.RolloutEmptiesNode, w.keepServing},
	} {
		if !w.found[fix.code] {
			continue
		}
		if why := fix.mend(); why != "" {
			without[why] = append(without[why], fix.code)
		} else {
			w.mends = append(w.mends, fix.code)
		}
	}
	for why, codes := range without {
		f.Without = append(f.Without, Without{w.target, codes, why})
	}
	if len(w.mends) > 0 {
		f.Patches = append(f.Patches, w.patch())
	}
}

func (w *workload) patch() Patch {
	slices.SortFunc(w.services, guard.Key.Compare)
	p := Patch{Target: w.target, Mends: w.mends, For: slices.Compact(w.services), Notes: w.notes}
	if len(w.template) > 0 {
		w.spec["template"] = map[string]any{"spec": w.template}
		p.Notes = append(p.Notes, "it changes the template, so applying it is a rollout")
	}
	p.Body = map[string]any{"spec": w.spec}
	if w.first != nil {
		first := map[string]any{}
		for k, v := range w.spec {
			first[k] = v
		}
		first["strategy"] = w.first
		p.First = map[string]any{"spec": first}
	}
	return p
}

// places are the labels that say where a node is; a label of any other kind may be there for what the node can do.
var places = []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

// unpin lets the pods run on every node.
func (w *workload) unpin() string {
	for i := range w.Spec.Volumes {
		if v := &w.Spec.Volumes[i]; v.HostPath != nil || v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return "it is pinned and has volume " + v.Name + ", which may be there only"
		}
	}
	other := func(key string) string {
		return "label " + key + " may say what its nodes can do: label further nodes, or name those that get traffic by safedrain.dev/nodes on the Service"
	}
	drop := map[string]any{}
	for _, key := range w.pins {
		if !slices.Contains(places, key) {
			return other(key)
		}
		drop[key] = nil
	}
	if w.pinned {
		for _, t := range w.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, r := range t.MatchExpressions {
				if !slices.Contains(places, r.Key) {
					return other(r.Key)
				}
			}
		}
		w.affinity()["nodeAffinity"] = map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": nil}
	}
	if len(drop) > 0 {
		w.template["nodeSelector"] = drop
	}
	if w.Kind == kindDaemonSet {
		return ""
	}
	switch {
	case int(w.Replicas) >= w.traffic:
	case len(w.Autoscalers) > 0:
		w.notes = append(w.notes, fmt.Sprintf("%d nodes get traffic, and its autoscaler decides how many pods there are: minReplicas %d", w.traffic, w.traffic))
	default:
		w.spec["replicas"] = int64(w.traffic)
	}
	return w.spread()
}

func (w *workload) affinity() map[string]any {
	if of, ok := w.template["affinity"].(map[string]any); ok {
		return of
	}
	of := map[string]any{}
	w.template["affinity"] = of
	return of
}

// spread puts the pods of each revision on nodes of their own, as far as there are nodes.
func (w *workload) spread() string {
	if w.Kind == kindDaemonSet {
		return ""
	}
	if term, _ := guard.ApartByNode(w.Spec); term != nil && w.Kind == kindDeployment {
		return w.byRevision()
	}
	constraints := w.honoring()
	at := slices.IndexFunc(constraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.TopologyKey == corev1.LabelHostname && c.WhenUnsatisfiable == corev1.DoNotSchedule
	})
	if at < 0 {
		honor := corev1.NodeInclusionPolicyHonor
		constraints = append(constraints, corev1.TopologySpreadConstraint{
			TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: w.Selector, NodeTaintsPolicy: &honor,
		})
		at = len(constraints) - 1
	}
	constraints[at].MaxSkew = 1
	if w.Kind == kindDeployment {
		constraints[at].MatchLabelKeys = withKey(constraints[at].MatchLabelKeys)
		w.surge()
	}
	w.constrain(constraints)
	return ""
}

func withKey(keys []string) []string {
	if slices.Contains(keys, revision) {
		return keys
	}
	return append(slices.Clone(keys), revision)
}

// honorTaints leaves nodes out of the spread that take no pod.
func (w *workload) honorTaints() string {
	if w.template["topologySpreadConstraints"] == nil {
		w.constrain(w.honoring())
	}
	return ""
}

// honoring are the constraints of the template, with those that must hold counting no node that takes no pod.
func (w *workload) honoring() []corev1.TopologySpreadConstraint {
	out := slices.Clone(w.Spec.TopologySpreadConstraints)
	honor := corev1.NodeInclusionPolicyHonor
	for i := range out {
		if guard.CountsTainted(&out[i]) {
			out[i].NodeTaintsPolicy = &honor
		}
	}
	return out
}

// constrain writes the constraints, whole: their key in a merge is not unique.
func (w *workload) constrain(constraints []corev1.TopologySpreadConstraint) {
	list := plain(constraints)
	if len(w.Spec.TopologySpreadConstraints) > 0 {
		list = append([]any{map[string]any{"$patch": "replace"}}, list...)
	}
	w.template["topologySpreadConstraints"] = list
}

// surge lets one new pod come before one goes.
func (w *workload) surge() {
	if w.Rollout.Type == rollingUpdate && !w.exclusive() {
		w.spec["strategy"] = rolling(1, 0)
	}
}

func rolling(surge, unavailable int64) map[string]any {
	return map[string]any{"type": rollingUpdate, "rollingUpdate": map[string]any{"maxSurge": surge, "maxUnavailable": unavailable}}
}

// unlock lets a rollout go on.
func (w *workload) unlock() string {
	if w.Kind == kindDaemonSet {
		w.spec["updateStrategy"] = rolling(0, 1)
		return ""
	}
	if w.exclusive() {
		w.spec["strategy"] = rolling(0, 1)
		w.notes = append(w.notes, "its host ports let a node have one pod: in a rollout a pod goes before the next comes")
		return ""
	}
	return w.byRevision()
}

// keepServing lets no node be empty in the middle of a rollout.
func (w *workload) keepServing() string {
	switch {
	case w.Rollout.Type == "Recreate":
		return "strategy Recreate is somebody's choice: if two revisions may run at once, RollingUpdate with maxSurge 1 and maxUnavailable 0"
	case w.Kind == kindStatefulSet:
		return "a StatefulSet takes a pod away before it makes the next: two pods on each node, or a Deployment"
	case w.exclusive():
		return "its host ports let a node have one pod, so the next revision cannot come before this one goes: let the Service's port do, without host ports"
	case w.Kind == kindDaemonSet:
		w.spec["updateStrategy"] = rolling(1, 0)
		return ""
	}
	return w.byRevision()
}

// exclusive reports whether host ports keep two pods of the workload off one node.
func (w *workload) exclusive() bool {
	return w.Spec.HostNetwork || slices.ContainsFunc(w.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort > 0 })
	})
}

// byRevision lets a new pod share a node with an old one, and keeps those of one revision apart.
func (w *workload) byRevision() string {
	term, at := guard.ApartByNode(w.Spec)
	if term == nil {
		return w.spread()
	}
	terms := slices.Clone(w.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	terms[at].MatchLabelKeys = withKey(terms[at].MatchLabelKeys)
	w.affinity()["podAntiAffinity"] = map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": plain(terms)}
	w.surge()
	if note := "matchLabelKeys in pod affinity needs Kubernetes 1.31"; !slices.Contains(w.notes, note) {
		w.notes = append(w.notes, note)
	}
	if w.found[guard.RolloutDeadlock] && w.first == nil {
		w.first = rolling(0, 1)
		w.notes = append(w.notes, "the pods that run keep every other off their node, so this once a pod goes before the next comes: each node is without an endpoint for a moment")
	}
	return ""
}

// plain turns API types into what a patch is made of.
func plain(of any) []any {
	text, err := json.Marshal(of)
	var out []any
	if err != nil || json.Unmarshal(text, &out) != nil {
		return nil // API types can be written as JSON
	}
	return out
}
