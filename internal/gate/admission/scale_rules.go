package admission

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// enforce judges a scaling by the Services of the target. Below the floor it is stopped there where it may be clamped, and
// refused else. What is stored in the end is judged for the pods that its controller takes: while those would empty a node
// that others could spare it is refused, until the keepers are marked.
func enforce(r *scaling, t *guard.ScaleTarget, v *cluster.StoreView, clamp bool, now time.Time) scaleVerdict {
	plan := guard.JudgeScale(t, v, r.after, now)
	out := passes(ScaleIsSafe)
	granted := r.after
	if f := standing(&plan, guard.BelowFloor); f != nil {
		if !clamp {
			return scaleVerdict{reason: BelowFloor, deny: f.Message + " (raise minReplicas, or " + guard.AnnotationFloor + " there)"}
		}
		granted = plan.Clamped()
		out = scaleVerdict{
			reason: BelowFloor, clamped: &granted,
			warning: fmt.Sprintf("safedrain kept %s, asked for %d: %s", replicas(granted), r.after, plan.Floor.Source),
			kept:    &Kept{Asked: r.after, Granted: granted, Why: plan.Floor.Source},
		}
		plan = guard.JudgeScale(t, v, granted, now)
	}
	if f := standing(&plan, guard.ScaleEmptiesNode); f != nil {
		return scaleVerdict{reason: EmptiesNode, deny: emptiesText(r, t, v, granted, f)}
	}
	return out
}

// warn says what enforcing would have done.
func warn(r *scaling, t *guard.ScaleTarget, v *cluster.StoreView, plan guard.ScalePlan) scaleVerdict {
	if f := standing(&plan, guard.BelowFloor); f != nil {
		granted := plan.Clamped()
		return scaleVerdict{
			reason:  BelowFloor,
			warning: fmt.Sprintf("safedrain would keep %s, asked for %d: %s (gate=warn)", replicas(granted), r.after, plan.Floor.Source),
			kept:    &Kept{Asked: r.after, Granted: granted, Why: plan.Floor.Source, Warned: true},
		}
	}
	if f := standing(&plan, guard.ScaleEmptiesNode); f != nil {
		return scaleVerdict{reason: EmptiesNode, warning: "safedrain would refuse: " + emptiesText(r, t, v, r.after, f) + " (gate=warn)"}
	}
	return passes(ScaleIsSafe)
}

// standing returns the finding of that code that blocks.
func standing(plan *guard.ScalePlan, code guard.Code) *guard.Finding {
	if f := plan.Finding(code); f != nil && f.Severity == guard.Block {
		return f
	}
	return nil
}

// emptiesText says which node would be left without an endpoint although other pods could go.
func emptiesText(r *scaling, t *guard.ScaleTarget, v *cluster.StoreView, to int32, f *guard.Finding) string {
	node := "a node"
	switch len(f.Nodes) {
	case 0:
	case 1:
		node = f.Nodes[0]
	default:
		node = fmt.Sprintf("%s and %d more", f.Nodes[0], len(f.Nodes)-1)
	}
	return fmt.Sprintf("%s: at %d its controller would empty %s, in rotation; %s", r.title(), to, node, until(t, v, f.Nodes))
}

// until says what would make a controller choose otherwise. Keepers are marked where pods share a node, and where the Service
// has others on nodes that nobody sends to. A pod that is alone elsewhere gets no deletion cost.
func until(t *guard.ScaleTarget, v *cluster.StoreView, emptied []string) string {
	if t.StatefulSet != nil {
		return "it takes its highest ordinals, wherever they are"
	}
	on, alone := map[string]int{}, ""
	for _, pod := range t.Pods {
		on[pod.Spec.NodeName]++
		if p := guard.KeptPodOf(pod); p.ForeignCost() {
			return "somebody else's deletion costs decide, see pod " + pod.Name
		}
	}
	for _, pod := range t.Pods {
		if node := pod.Spec.NodeName; on[node] == 1 && slices.Contains(emptied, node) {
			alone = pod.Name
		}
	}
	spare := slices.ContainsFunc(t.Services, func(svc *guard.ServiceFacts) bool { return svc.Spare(v) })
	if alone != "" && !spare {
		return "give pod " + alone + ", alone there, a higher " + corev1.PodDeletionCost
	}
	return "keepers are being marked, try again"
}

func replicas(n int32) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}
