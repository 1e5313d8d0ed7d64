package lbhooks

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// ErrUnavailable says that the hook cannot work here at all: no credentials, a verb that is forbidden, a CRD that is not
// installed. Retrying does not help.
var ErrUnavailable = errors.New("hook cannot work")

// ErrNotProven says that the time for a proof ran out while the balancer, as far as can be seen, still sends to the node.
var ErrNotProven = errors.New("not proven out of rotation")

// ErrNobodyElse says that a balancer has no healthy target besides the nodes that are to leave it.
var ErrNobodyElse = errors.New("no other target is healthy")

// Unavailable wraps ErrUnavailable with what is missing and what to do about it.
func Unavailable(hook, what string, cause error) error {
	if cause == nil {
		return fmt.Errorf("%s: %w: %s", hook, ErrUnavailable, what)
	}
	return fmt.Errorf("%s: %w: %s: %w", hook, ErrUnavailable, what, cause)
}

// ReadFailed classifies the error of a LIST or GET of a kind, "servicel2statuses.metallb.io" for one: forbidden, without
// valid credentials or not served is permanent and wraps [ErrUnavailable]; anything else may pass and is only wrapped.
// A 404 counts as not served, so callers handle that of a single object first.
func ReadFailed(hook, verb, kind string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return Unavailable(hook, fmt.Sprintf("not allowed to %s %s: ask for that verb", verb, kind), err)
	case apierrors.IsUnauthorized(err):
		return Unavailable(hook, fmt.Sprintf("no valid credentials to %s %s: log in again", verb, kind), err)
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return Unavailable(hook, fmt.Sprintf("%s is not served here: install its CRD", kind), err)
	}
	return fmt.Errorf("%s: %s %s: %w", hook, verb, kind, err)
}

// NotProvenError is what [Wait] returns at its timeout. It matches [ErrNotProven], and the error of the last observation
// if that one failed.
type NotProvenError struct {
	Hook    string
	Service string // namespace/name
	Node    string
	After   time.Duration
	Last    Proof // the last observation that did not fail
	Cause   error // of the last observation, nil when it did not fail
}

// Error says what was not proven, for how long, and what was seen last.
func (e *NotProvenError) Error() string {
	text := fmt.Sprintf("%s: node %q %s of %s after %s", e.Hook, e.Node, ErrNotProven, e.Service, e.After.Round(time.Millisecond))
	separator := ": "
	if e.Last.Evidence != "" {
		text, separator = text+": "+e.Last.Evidence, "; "
	}
	if e.Cause != nil { // as when the time was over before the last try was: what was seen before it counts all the same
		text += separator + "last try failed: " + e.Cause.Error()
	}
	return text
}

// Unwrap makes errors.Is find ErrNotProven and the cause.
func (e *NotProvenError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrNotProven}
	}
	return []error{ErrNotProven, e.Cause}
}
