package guard

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// annotationMaxReplicas is where the Deployment controller notes, on a ReplicaSet, the most pods that the Deployment could
// have when it was last scaled.
const annotationMaxReplicas = "deployment.kubernetes.io/max-replicas"

// shares is the size that the Deployment controller gives to each of its ReplicaSets, by UID, when the Deployment is scaled:
// all to the only one that has replicas; in the middle of a rolling update to each its share of what is allowed. It is nil
// in the middle of any other update, where the controller does not say.
//
// Source: scale in k8s.io/kubernetes/pkg/controller/deployment/sync.go.
func shares(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, after int32) map[types.UID]int32 {
	sizes := make(map[types.UID]int32, len(sets))
	var active []*appsv1.ReplicaSet
	for _, s := range sets {
		sizes[s.UID] = 0
		if size(s) > 0 {
			active = append(active, s)
		}
	}
	switch {
	case len(active) == 1:
		sizes[active[0].UID] = after
		return sizes
	case len(active) > 1 && !rolling(d):
		return nil
	}
	allowed := int32(0)
	if after > 0 {
		allowed = after + surge(d, after)
	}
	add := allowed
	for _, s := range active {
		add -= size(s)
	}
	slices.SortFunc(active, func(a, b *appsv1.ReplicaSet) int {
		older := cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		if add > 0 {
			older = -older
		}
		return cmp.Or(cmp.Compare(size(b), size(a)), older)
	})
	added := int32(0)
	for _, s := range active {
		share := shareOf(d, s, after, add, added)
		sizes[s.UID] = size(s) + share
		added += share
	}
	if len(active) > 0 {
		first := active[0].UID
		sizes[first] = max(0, sizes[first]+add-added)
	}
	return sizes
}

// shareOf is what one ReplicaSet gets, or loses, of the replicas that are to be added in all.
func shareOf(d *appsv1.Deployment, s *appsv1.ReplicaSet, after, add, added int32) int32 {
	if add == 0 || add == added {
		return 0
	}
	fraction := fractionOf(d, s, after)
	if add > 0 {
		return min(fraction, add-added)
	}
	return max(fraction, add-added)
}

func fractionOf(d *appsv1.Deployment, s *appsv1.ReplicaSet, after int32) int32 {
	if after == 0 {
		return -size(s)
	}
	before, err := strconv.ParseUint(s.Annotations[annotationMaxReplicas], 10, 31)
	if err != nil || before == 0 {
		before = uint64(max(0, d.Status.Replicas))
	}
	if before == 0 {
		return 0
	}
	wanted := float64(size(s)*(after+surge(d, after))) / float64(before)
	return int32(math.Round(wanted)) - size(s)
}

func rolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType || d.Spec.Strategy.Type == ""
}

// surge is the pods above its replicas that a Deployment may have.
func surge(d *appsv1.Deployment, replicas int32) int32 {
	if !rolling(d) {
		return 0
	}
	most := intstr.FromString("25%") // the API server's default
	if u := d.Spec.Strategy.RollingUpdate; u != nil && u.MaxSurge != nil {
		most = *u.MaxSurge
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&most, int(replicas), true)
	if err != nil {
		return 0
	}
	return int32(n) //nolint:gosec // a number of replicas
}

// size is the replicas of a ReplicaSet; the API server takes none for 1.
func size(s *appsv1.ReplicaSet) int32 {
	if s.Spec.Replicas == nil {
		return 1
	}
	return *s.Spec.Replicas
}

// rollout warns that a rollout is under way: it goes on taking and making pods by rules of its own.
func (s *scaling) rollout() {
	d := s.target.Deployment
	if d == nil || s.draw.count == 0 {
		return
	}
	var names []string
	for _, set := range s.target.ReplicaSets {
		if size(set) > 0 {
			names = append(names, fmt.Sprintf("%s (%d)", set.Name, size(set)))
		}
	}
	if len(names) < 2 {
		return
	}
	slices.Sort(names)
	s.plan.Findings = append(s.plan.Findings, Finding{
		Code: RolloutInProgress, Severity: Warn,
		Message: "a rollout is under way: " + strings.Join(names, ", ") + " share what is left, and it goes on taking pods of the old",
		Advice:  "scale once it has ended: kubectl rollout status",
	})
}
