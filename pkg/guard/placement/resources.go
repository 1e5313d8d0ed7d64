package placement

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// Resources are amounts of what nodes have and pods ask for: millicores, bytes, and for all else the quantity's value.
type Resources struct {
	MilliCPU  int64
	Memory    int64
	Ephemeral int64
	Others    []Amount // huge pages and extended resources, sorted by name, none of them 0
}

// Amount is an amount of one resource.
type Amount struct {
	Name  corev1.ResourceName
	Value int64
}

// resourcesOf reads a ResourceList; the number of pods is not among the amounts.
//
// Source: Resource.Add in k8s.io/kubernetes/pkg/scheduler/framework/types.go.
func resourcesOf(list corev1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case corev1.ResourceMemory:
			r.Memory = q.Value()
		case corev1.ResourceEphemeralStorage:
			r.Ephemeral = q.Value()
		case corev1.ResourcePods:
		default:
			if v := q.Value(); v != 0 {
				r.Others = append(r.Others, Amount{name, v})
			}
		}
	}
	slices.SortFunc(r.Others, func(a, b Amount) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

// asked is what a pod without a node asks for: its containers, init containers and sidecars, what it states for the pod
// as a whole, and its overhead.
//
// Source: computePodResourceRequest in noderesources/fit.go.
func asked(p *corev1.Pod) Resources {
	return resourcesOf(resource.PodRequests(p, resource.PodResourcesOptions{}))
}

// held is what a pod takes of its node: the most of what it asks for and what it was given, while it is being resized.
//
// Source: PodInfo.CalculateResource in k8s.io/kubernetes/pkg/scheduler/framework/types.go.
func held(p *corev1.Pod) Resources {
	return resourcesOf(resource.PodRequests(p, resource.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true,
	}))
}

// of returns the amount of one of the other resources.
func (r *Resources) of(name corev1.ResourceName) int64 {
	for i := range r.Others {
		if r.Others[i].Name == name {
			return r.Others[i].Value
		}
	}
	return 0
}

// add adds o, sign times.
func (r *Resources) add(o *Resources, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.Ephemeral += sign * o.Ephemeral
	for _, a := range o.Others {
		i, ok := slices.BinarySearchFunc(r.Others, a.Name, func(a Amount, n corev1.ResourceName) int { return cmp.Compare(a.Name, n) })
		if !ok {
			r.Others = slices.Insert(r.Others, i, Amount{Name: a.Name})
		}
		r.Others[i].Value += sign * a.Value
	}
}

// tooLittle names what a node lacks for a request; "" when it has room.
//
// Source: fitsRequest in noderesources/fit.go.
func (n *node) tooLittle(want *Resources) string {
	if !n.measured {
		return ""
	}
	have, used := &n.allocatable, &n.used
	switch {
	case len(n.pods)+1 > n.maxPods:
		return "too many pods"
	case want.MilliCPU > 0 && want.MilliCPU > have.MilliCPU-used.MilliCPU:
		return "too little cpu"
	case want.Memory > 0 && want.Memory > have.Memory-used.Memory:
		return "too little memory"
	case want.Ephemeral > 0 && want.Ephemeral > have.Ephemeral-used.Ephemeral:
		return "too little ephemeral-storage"
	}
	for _, a := range want.Others {
		if a.Value > 0 && a.Value > have.of(a.Name)-used.of(a.Name) {
			return "too little " + string(a.Name)
		}
	}
	return ""
}
