package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Verb is a permission that the user does not have.
type Verb struct {
	Verb      string // "list"
	Resource  string // "endpointslices"
	Group     string // "discovery.k8s.io", "" for core
	Namespace string // "" for all namespaces
	Needed    bool   // nothing can be judged without it
	Why       string // what is lost without it

	kind schema.GroupKind
}

// String returns "list endpointslices.discovery.k8s.io".
func (v Verb) String() string {
	return v.Verb + " " + schema.GroupResource{Group: v.Group, Resource: v.Resource}.String()
}

// Forbidden says that permissions are missing without which nothing can be judged. It names every missing one, the
// optional ones too, so that one request to an admin is enough.
type Forbidden struct {
	User    string // as the API server names it; "" when it did not say
	Missing []Verb // needed ones first
}

// Error names every missing permission on one line.
func (f *Forbidden) Error() string {
	var needed, optional []string
	for _, v := range f.Missing {
		if v.Needed {
			needed = append(needed, v.String())
		} else {
			optional = append(optional, v.String())
		}
	}
	who := "the current user"
	if f.User != "" {
		who = fmt.Sprintf("user %q", f.User)
	}
	msg := who + " may not " + strings.Join(needed, ", ")
	if len(optional) > 0 {
		msg += " (needed), nor " + strings.Join(optional, ", ") + " (optional)"
	}
	return msg
}

// NotFound says that nodes which were asked for do not exist. Names are never guessed.
type NotFound struct {
	Names       []string            // sorted
	Suggestions map[string][]string // by name: existing nodes that look like it, best first; may be empty
}

// Error names the nodes and what may have been meant.
func (e *NotFound) Error() string {
	parts := make([]string, len(e.Names))
	for i, n := range e.Names {
		parts[i] = fmt.Sprintf("node %q not found", n)
		if s := e.Suggestions[n]; len(s) > 0 {
			parts[i] += ", did you mean " + strings.Join(s, " or ") + "?"
		}
	}
	return strings.Join(parts, "; ")
}

// Resolve returns a *NotFound when one of the names is not that of a node.
func (s *Snapshot) Resolve(names []string) error {
	var e *NotFound
	for _, name := range uniqueSorted(names) {
		if _, ok := s.nodeAt[name]; ok {
			continue
		}
		if e == nil {
			e = &NotFound{Suggestions: map[string][]string{}}
		}
		e.Names = append(e.Names, name)
		if like := s.suggest(name); len(like) > 0 {
			e.Suggestions[name] = like
		}
	}
	if e == nil {
		return nil
	}
	return e
}

// maxSuggestions is how many names a mistyped one is answered with.
const maxSuggestions = 3

// suggest finds the nodes whose name, hostname label or address the name looks like.
func (s *Snapshot) suggest(name string) []string {
	type candidate struct {
		name  string
		score int
	}
	var found []candidate
	for i, n := range s.nodes {
		score := -1
		switch {
		case strings.HasPrefix(n.Name, name+"."):
			score = 0
		case n.Labels["kubernetes.io/hostname"] == name, slices.Contains(s.facts[i].Addresses, name):
			score = 1
		case strings.EqualFold(n.Name, name):
			score = 1
		default:
			if d := distance(n.Name, name, 2); d <= 2 && d < len(name) {
				score = 1 + d
			}
		}
		if score >= 0 {
			found = append(found, candidate{n.Name, score})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
	})
	var out []string
	for _, c := range found[:min(len(found), maxSuggestions)] {
		out = append(out, c.name)
	}
	return out
}

// distance counts the single-character edits between two names; any result above limit means "more than limit".
func distance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// uniqueSorted returns the names sorted, each once.
func uniqueSorted(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
