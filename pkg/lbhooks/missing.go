package lbhooks

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// Missing is something without which a hook cannot work, or works less well.
type Missing struct {
	What string // one line: what is missing, and of what: a permission, a credential, a setting
	Why  string // what is lost without it, or what to do; may be empty
	// Forbidden says that a permission would mend it.
	Forbidden bool
	// Optional says that the hook works without it, or that it may pass.
	Optional bool
}

// Checker is a hook that can find out by reads alone whether it could work, before anything depends on it.
type Checker interface {
	Hook
	// Check looks at Services that the hook fronts, with some node each; it may look at a few of them only. It returns what
	// is missing, nothing when all is there or when it could not tell.
	Check(ctx context.Context, targets []Target) []Missing
}

// checked is how many Services TryProofs looks at: every kind of call comes up within a few, and it stays quick.
const checked = 5

// TryProofs makes the observation of a proof for a few of the targets, and says what stands against it; it is a
// [Checker]'s usual way. Forbidden is the type of error that a refused permission has; lost is what is lost with anything
// else, and grant says where the permissions are listed.
func TryProofs[Forbidden error](ctx context.Context, h Hook, all []Target, lost, grant string) []Missing {
	var out []Missing
	for _, t := range spread(all) {
		_, err := h.Prove(ctx, t)
		if err == nil {
			continue
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return append(out, Missing{What: "an answer in time", Why: lost, Optional: true})
		}
		if ctx.Err() != nil {
			return out
		}
		m := Missing{What: strings.TrimPrefix(err.Error(), h.Describe().Name+": "), Why: lost}
		var denied Forbidden
		if errors.As(err, &denied) {
			m = Missing{What: denied.Error(), Why: grant, Forbidden: true}
		}
		m.Optional = !errors.Is(err, ErrUnavailable)
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// spread picks targets from the whole list, as many as are checked.
func spread(all []Target) []Target {
	if len(all) <= checked {
		return all
	}
	var out []Target
	for i := range checked {
		out = append(out, all[i*len(all)/checked])
	}
	return out
}
