package cli

import (
	"errors"
	"fmt"

	"github.com/safedrain/safedrain/internal/drain"
)

// Exit codes that are no outcome of a run.
const (
	exitError = int(drain.Failed)
	exitUsage = 2
)

// usageError is a mistake in what was typed.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// codeError ends the process with a code after everything there is to say has been printed.
type codeError struct{ code int }

func (e *codeError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// exitWith returns an error for a code that is not 0.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &codeError{code}
}

// exitCode is the exit code of an error that a command returned, and whether its text is still to be printed.
func exitCode(err error) (code int, printed bool) {
	var coded *codeError
	var usage *usageError
	switch {
	case err == nil:
		return 0, true
	case errors.As(err, &coded):
		return coded.code, true
	case errors.As(err, &usage):
		return exitUsage, false
	default:
		return exitError, false
	}
}
