package drain

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
)

// stage is how far a pod is.
type stage int

const (
	stageGated    stage = iota // waits for Services to let the node go
	stageReady                 // may be tried, at or after due
	stageInFlight              // a call is under way
	stageLeaving               // the API accepted; or it was terminating before
	stageGone                  // no longer on the node
	stageSkipped               // terminating for so long that it is not waited for
	stageFailed                // will not be tried again
	stageWithheld              // its Service did not let the node go
)

// over reports whether nothing more is awaited of the pod.
func (s stage) over() bool { return s >= stageGone }

// podState is one pod that is to leave the node.
type podState struct {
	plan     *guard.PodPlan
	stage    stage
	due      time.Time
	began    time.Time // of the first try
	deletion time.Time // deletionTimestamp, zero while there is none
	serial   []guard.Key

	tries   int       // in a row with the same kind of answer
	last    answer    // of the last try
	failing time.Time // since when only failures that may pass came back
	blocked string    // by whom, as it was told last; "" while it is not blocked
}

// podSeen is what the watch says of one pod, or, when it is about none, that from now on nothing is missed.
type podSeen struct {
	uid      types.UID
	gone     bool
	deletion time.Time
	// all, when not nil, is a whole list in place of one pod: deletion times by UID. Who is missing is gone.
	all map[types.UID]time.Time
}

// held says that a pod's answer means waiting, and for whom.
func (p *podState) heldBy() (string, bool) {
	if p.stage.over() || p.stage == stageLeaving || p.blocked == "" {
		return "", false
	}
	return p.blocked, true
}
