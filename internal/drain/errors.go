package drain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/safedrain/safedrain/internal/claim"
)

var (
	errInterrupted = errors.New("interrupted")
	errNodeDeleted = errors.New("the node was deleted")
)

// TimedOut says that the drain of a node took longer than it may.
type TimedOut struct {
	Node  string
	After time.Duration
}

func (e *TimedOut) Error() string {
	return fmt.Sprintf("node %q is not drained after %s; the same command goes on", e.Node, e.After)
}

// Unsettled says that a node was begun and is not drained.
type Unsettled struct {
	Node string
	What string
}

func (e *Unsettled) Error() string { return fmt.Sprintf("node %q is not drained: %s", e.Node, e.What) }

// NotOut says that a node could not be withdrawn from, or not be proven out of, the balancer of a Service. None of its
// pods was evicted.
type NotOut struct {
	Node    string
	Service string
	Hook    string
	Cause   error
}

func (e *NotOut) Error() string {
	return fmt.Sprintf("%s is not proven out of %s on node %q, none of its pods was evicted: %v", e.Service, e.Hook, e.Node, e.Cause)
}

// Unwrap returns why.
func (e *NotOut) Unwrap() error { return e.Cause }

// OtherLoses says that a Service of the plan lost its endpoints elsewhere while the run went on.
type OtherLoses struct {
	Node     string
	Services []string
}

func (e *OtherLoses) Error() string {
	return fmt.Sprintf("stopped on node %q: no endpoint is left elsewhere for %s, which had some when the drain was judged (another drain, a crash or a preemption)",
		e.Node, strings.Join(e.Services, ", "))
}

// Denied says that the API refuses this user a call for good.
type Denied struct {
	What  string
	Cause error
}

func (e *Denied) Error() string { return e.What + ": " + e.Cause.Error() }

// Unwrap returns the API's answer.
func (e *Denied) Unwrap() error { return e.Cause }

// definite reports whether an error says for certain that the work on a node is over.
func definite(err error) bool {
	var taken *claim.TakenOver
	var changed *claim.Changed
	return errors.As(err, &taken) || errors.As(err, &changed) || errors.Is(err, errNodeDeleted)
}

// rank orders outcomes from good to bad for a run of several nodes; an interruption ends them all.
var rank = map[Outcome]int{Done: 0, Failed: 1, Refused: 2, Unfinished: 3, HookFailed: 4, Interrupted: 5}

// outcome is what the errors of a run come to. begun says that nodes are claimed, evicted that a pod was evicted.
func outcome(err error, begun, evicted bool) Outcome {
	if err == nil {
		return Done
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		worst := Done
		for _, part := range joined.Unwrap() {
			if o := outcome(part, begun, evicted); rank[o] > rank[worst] {
				worst = o
			}
		}
		return worst
	}
	return outcomeOf(err, begun, evicted)
}

func outcomeOf(err error, begun, evicted bool) Outcome {
	var (
		refusal *Refusal
		lost    *claim.LostTo
		notOut  *NotOut
		denied  *Denied
		stays   *StaysOut
		late    *Late
	)
	switch {
	case errors.As(err, &stays) && stays.Failed:
		return HookFailed
	case errors.As(err, &denied) && !evicted:
		return Failed
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return Interrupted
	case errors.As(err, &notOut), errors.As(err, &late):
		return HookFailed
	case errors.As(err, &refusal), errors.As(err, &lost):
		if begun {
			return Unfinished
		}
		return Refused
	case begun:
		return Unfinished
	}
	return Failed
}

func stepOutcome(err error) string {
	var (
		timedOut *TimedOut
		notOut   *NotOut
	)
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &timedOut):
		return "timedOut"
	case errors.As(err, &notOut):
		return "failed"
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return "interrupted"
	}
	return "failed"
}
