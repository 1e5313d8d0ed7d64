package rolling

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

var errInterrupted = errors.New("interrupted")

// Refusal says that guard refuses some of the nodes as things are. Nothing was changed.
type Refusal struct {
	Plans []guard.DrainPlan // of one node each, in the order of their turns
	All   int
}

func (e *Refusal) Error() string {
	return fmt.Sprintf("%d of %d nodes would be refused, nothing changed", len(e.Plans), e.All)
}

// notNow says that guard does not let a node go for the moment.
type notNow struct {
	Plan  *guard.DrainPlan // nil when Cause says it
	Cause error
}

func (e *notNow) Error() string {
	if e.Plan == nil {
		return "refused for now: " + e.Cause.Error()
	}
	return "refused for now: " + standing(e.Plan)
}

// CommandError says that the command failed on a node.
type CommandError struct {
	Node     string
	Why      string
	TimedOut bool
}

func (e *CommandError) Error() string {
	return "the command failed: " + e.Why
}

// NotCovered says that Services of a node have fewer endpoints than before it was begun.
type NotCovered struct {
	Missing []string
	After   string
}

func (e *NotCovered) Error() string {
	return fmt.Sprintf("not covered again after %s: %s", e.After, joined(e.Missing))
}

// outcomeOf is what the error of a node, or of the roll as a whole, comes to.
func (d *roll) outcomeOf(err error) drain.Outcome {
	var (
		end     *badEnd
		refusal *Refusal
		atWork  *AtWork
		other   *OtherWork
		later   *notNow
		taken   *TakenOver
	)
	switch {
	case err == nil:
		return drain.Done
	case errors.As(err, &end):
		return end.outcome
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return drain.Interrupted
	case errors.As(err, &refusal), errors.As(err, &atWork), errors.As(err, &other):
		return drain.Refused
	case (errors.As(err, &later) || errors.As(err, &taken)) && !d.touched():
		return drain.Refused
	case d.touched():
		return drain.Unfinished
	}
	return drain.Failed
}

// badEnd is a drain or an uncordon that did not end well.
type badEnd struct {
	outcome drain.Outcome
	cause   error
}

func (e *badEnd) Error() string { return e.cause.Error() }

// Unwrap returns why.
func (e *badEnd) Unwrap() error { return e.cause }

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// badness orders outcomes, as in internal/drain.
var badness = map[drain.Outcome]int{
	drain.Done: 0, drain.Failed: 1, drain.Refused: 2, drain.Unfinished: 3, drain.HookFailed: 4, drain.Interrupted: 5,
}
