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
		if serves := j.everyPodServes(n); serves < need {
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

// everyPodServes is how long each pod of the Service on a node provably serves after its eviction: here the one that ends
// first counts, for each is a target of its own. One that is not evicted goes with the node, without a warning.
func (j *judgement) everyPodServes(node string) time.Duration {
	shortest, found := time.Duration(0), false
	for pod := range j.ix.Pods(node) {
		if !j.isEndpoint(pod.UID) {
			continue
		}
		if !j.loss.Evicted[pod.UID] {
			return 0
		}
		serves := servesAfterEviction(pod, graceOf(pod, j.loss.Flags.GracePeriod))
		if !found || serves < shortest {
			shortest, found = serves, true
		}
	}
	return shortest
}
