package guard

import (
	"fmt"
	"time"
)

// podTargets warns of pods that stop serving before a balancer that sends to pods, past the nodes, has let go of them. No
// label and no hook helps there: each pod leaves by its own termination.
func (j *judgement) podTargets() {
	r := &j.svc.Rotation
	if r.PodTargets == nil {
		return
	}
	need := r.PodTargets.removalTime()
	var short []string
	var gap time.Duration
	for _, n := range j.lost {
		if serves := j.servingTime(n); serves < need {
			short = append(short, n)
			gap = max(gap, need-serves)
		}
	}
	if len(short) == 0 {
		return
	}
	j.add(Finding{
		Code: GraceTooShort, Severity: Warn, Nodes: short,
		Message: fmt.Sprintf("the pods may stop serving %s before their balancer lets go of them: it sends to pods, not to nodes, and needs %s (%s)",
			gap, need, r.PodTargets.Source),
		Advice: fmt.Sprintf("a preStop sleep of %s with a longer grace, and the balancer's pod readiness gate", need),
	})
}
