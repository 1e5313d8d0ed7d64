package drain

import (
	"reflect"
	"testing"

	"github.com/safedrain/safedrain/pkg/guard"
)

// TestBlockedBy: what a webhook said of one pod is not hidden by what it said of another.
func TestBlockedBy(t *testing.T) {
	held := func(name, by, what string) *podState {
		return &podState{
			plan: &guard.PodPlan{Namespace: "kafka", Name: name}, stage: stageReady, blocked: by, last: answer{by: by, what: what},
		}
	}
	const webhook, budget = "webhook evict.example.com", "budget kafka/kafka"
	got := blockedBy([]*podState{
		held("z", webhook, "EOF"), held("c", budget, "needs 1"), held("a", webhook, "the operator moves it"), held("y", webhook, "EOF"),
	})
	want := []Blocked{
		{By: budget, Pods: []string{"kafka/c"}, Details: []string{"needs 1"}},
		{By: webhook, Pods: []string{"kafka/a", "kafka/y", "kafka/z"}, Details: []string{"the operator moves it", "EOF"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
