// Package mend turns the hazards of an audit into patches that mend them. It applies nothing, guesses nothing, and says where
// no patch is safe.
//
// Patches are strategic merge patches, as `kubectl patch` and kustomize take them. Those of one object are one patch. After
// they were applied and rolled out, an audit finds none of the hazards that they name.
package mend

import (
	"cmp"
	"slices"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Target names the object of a patch.
type Target struct {
	Group, Version, Kind string
	guard.Key
}

// Patch is a strategic merge patch of one object.
type Patch struct {
	Target Target
	Mends  []guard.Code
	For    []guard.Key // Services, sorted
	Body   map[string]any
	// First is to be applied before, and its rollout waited for: the rollout of Body alone would not end. Nil where it would.
	First map[string]any
	Notes []string // what the patch brings with it, for people
}

// Without is a hazard that no patch mends safely.
type Without struct {
	Target Target
	Codes  []guard.Code
	Why    string
}

// Fixes are what mends some hazards, sorted by object.
type Fixes struct {
	Patches []Patch
	Without []Without
}

// Of makes the patches for some hazards.
func Of(hazards []guard.Hazard) Fixes {
	f := &Fixes{}
	work := map[Target]*workload{}
	var order []Target
	for i := range hazards {
		h := &hazards[i]
		switch {
		case h.Autoscaler != nil:
			f.autoscaler(h)
		case h.Workload == nil:
			f.service(h)
		default:
			t := Target{"apps", "v1", h.Workload.Kind, h.Workload.Key}
			if work[t] == nil {
				work[t] = &workload{Workload: h.Workload, target: t, found: map[guard.Code]bool{}}
				order = append(order, t)
			}
			work[t].found[h.Code] = true
			work[t].services = append(work[t].services, h.Service)
			work[t].traffic = max(work[t].traffic, h.Traffic)
			work[t].pins = append(work[t].pins, h.Pins...)
			work[t].pinned = work[t].pinned || h.Affinity
		}
	}
	for _, t := range order {
		work[t].mend(f)
	}
	slices.SortStableFunc(f.Patches, func(a, b Patch) int { return a.Target.compare(b.Target) })
	slices.SortStableFunc(f.Without, func(a, b Without) int { return a.Target.compare(b.Target) })
	return *f
}

func (t Target) compare(o Target) int {
	return cmp.Or(t.Compare(o.Key), cmp.Compare(t.Kind, o.Kind))
}

// autoscaler raises the bounds of a HorizontalPodAutoscaler to the floor.
func (f *Fixes) autoscaler(h *guard.Hazard) {
	a := h.Autoscaler
	t := Target{"autoscaling", "v2", "HorizontalPodAutoscaler", a.Key}
	if a.By != "" {
		f.Without = append(f.Without, Without{t, []guard.Code{h.Code}, "its bounds are written by " + a.By + ": raise them there"})
		return
	}
	spec := map[string]any{"minReplicas": int64(h.Floor)}
	if a.Max < h.Floor {
		spec["maxReplicas"] = int64(h.Floor)
	}
	i := slices.IndexFunc(f.Patches, func(p Patch) bool { return p.Target == t })
	if i < 0 {
		f.Patches = append(f.Patches, Patch{Target: t, Mends: []guard.Code{h.Code}, For: []guard.Key{h.Service}, Body: map[string]any{"spec": spec}})
		return
	}
	p := &f.Patches[i] // behind another Service: the larger floor
	p.For = append(p.For, h.Service)
	if before, ok := p.Body["spec"].(map[string]any)["minReplicas"].(int64); ok && before < int64(h.Floor) {
		p.Body["spec"] = spec
	}
}

// service lets clients reach endpoints on other nodes.
func (f *Fixes) service(h *guard.Hazard) {
	f.Patches = append(f.Patches, Patch{
		Target: Target{"", "v1", "Service", h.Service}, Mends: []guard.Code{h.Code}, For: []guard.Key{h.Service},
		Body: map[string]any{"spec": map[string]any{"internalTrafficPolicy": "Cluster"}},
		Notes: []string{
			"only if any endpoint will do for a client; where it has to be the one on its own node, make the workload a DaemonSet",
			"trafficDistribution: PreferSameNode (Kubernetes 1.35) keeps clients on their node where it has an endpoint",
		},
	})
}
