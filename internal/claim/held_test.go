package claim

import (
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestNothingToWrite: a change that changes nothing still finds out that the claim is another run's by now.
func TestNothingToWrite(t *testing.T) {
	api := newModelAPI(plainNodes(1)...)
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC))
	fits := (&world{}).judge(&actor{})
	first := &Claimer{Nodes: api, Clock: clk, Run: "first"}
	held, _, err := first.Acquire(t.Context(), []string{"n1"}, fits)
	if err != nil {
		t.Fatal(err)
	}
	if err := held[0].Renew(t.Context()); err != nil {
		t.Errorf("renew within the same second: %v", err)
	}
	second := &Claimer{Nodes: api, Clock: clk, Run: "second", TakeOver: true}
	if _, _, err := second.Acquire(t.Context(), []string{"n1"}, fits); err != nil {
		t.Fatal(err)
	}
	var over *TakenOver
	if err := held[0].Renew(t.Context()); !errors.As(err, &over) || over.Run != "second" {
		t.Errorf("renew after another run took over within the same second: %v, want *TakenOver", err)
	}
}
