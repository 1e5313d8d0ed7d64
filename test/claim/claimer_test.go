package claim

import (
	"errors"
	"testing"

	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
)

func claimer(t *testing.T, run string) *claim.Claimer {
	t.Helper()
	return &claim.Claimer{Nodes: clientOf(t, run).CoreV1().Nodes(), Clock: clock.RealClock{}, Run: run, Holder: run + "@test"}
}

func asTakenOver(err error, target **claim.TakenOver) bool { return errors.As(err, target) }
