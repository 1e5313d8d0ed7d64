package lbhooks

import (
	"errors"
	"fmt"
)

// ErrUnavailable says that the hook cannot work here at all: no credentials, a verb that is forbidden, a CRD that is not
// installed. Retrying does not help.
var ErrUnavailable = errors.New("hook cannot work")

// Unavailable wraps ErrUnavailable with what is missing and what to do about it.
func Unavailable(hook, what string, cause error) error {
	if cause == nil {
		return fmt.Errorf("%s: %w: %s", hook, ErrUnavailable, what)
	}
	return fmt.Errorf("%s: %w: %s: %w", hook, ErrUnavailable, what, cause)
}
