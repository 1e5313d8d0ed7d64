package lbhooks

import "context"

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
