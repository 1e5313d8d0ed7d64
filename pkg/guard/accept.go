package guard

import (
	"path"
	"slices"
	"strings"
)

// AcceptsUnproven reports whether --accept-unproven names a Service: by name, by a glob, or by "all". A hook that is
// broken is accepted by its full name only: "all" was said of Services that nobody can prove, not of broken tools.
func (f *Flags) AcceptsUnproven(svc Key, broken bool) bool {
	name := svc.String()
	for _, pattern := range f.AcceptUnproven {
		if pattern == name {
			return true
		}
		if broken {
			continue
		}
		if pattern == "all" {
			return true
		}
		if ok, err := path.Match(pattern, name); err == nil && ok {
			return true
		}
	}
	return false
}

// forces reports whether --force-unsafe names a subject, "service/ns/name" or "pod/ns/name". A Service may be named
// without its prefix.
func (f *Flags) forces(subject string) bool {
	short := strings.TrimPrefix(subject, "service/")
	return slices.ContainsFunc(f.ForceUnsafe, func(s string) bool { return s == "all" || s == subject || s == short })
}

// waits reports whether --wait-budget names a budget.
func (f *Flags) waits(budget string) bool {
	return slices.ContainsFunc(f.WaitBudget, func(s string) bool { return s == "all" || s == budget })
}
