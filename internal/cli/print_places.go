package cli

import (
	"fmt"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// placesShown is for how many Services it is said where their replacements may run, unless the output is wide.
const placesShown = 3

// places says where replacements may run, and on how many nodes each Service serves then. Those that fit nowhere are
// findings.
func (v *planView) places() string {
	var out []string
	more := 0
	for i := range v.plan.Services {
		s := &v.plan.Services[i]
		if s.Replacements == nil {
			continue
		}
		if !v.wide && len(out) == placesShown {
			more++
			continue
		}
		out = append(out, s.Key().String()+": "+v.placesOf(s))
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("+%d (-o wide)", more))
	}
	return strings.Join(out, "\n")
}

func (v *planView) placesOf(s *guard.ServicePlan) string {
	r := s.Replacements
	parts := []string{v.mayRun(r)}
	n := r.Nodes
	served := fmt.Sprintf("serves on %s now, %d after the drain", count(n.Before, "node"), n.Drained)
	if n.Replaced != n.Drained {
		served += fmt.Sprintf(", %d once replaced", n.Replaced)
	}
	if n.Back != n.Replaced {
		served += fmt.Sprintf(", %d with %s back", n.Back, v.nodes())
	}
	parts = append(parts, served)
	if h := r.Share; h != nil && h.After > h.Before {
		parts = append(parts, fmt.Sprintf("busiest endpoint %.0f%% -> %.0f%% of the traffic", 100*h.Before, 100*h.After))
	}
	return strings.Join(parts, "; ")
}

// mayRun says where the replacements of a Service may run: a prediction, never more.
func (v *planView) mayRun(r *guard.Replacements) string {
	to, unknown, nowhere, open := map[string]int{}, 0, 0, 0
	for i := range r.Pods {
		switch p := &r.Pods[i]; {
		case p.Unknown != "":
			unknown++
		case p.Reason != "":
			nowhere++
		case p.May == "":
			open++
		default:
			to[p.May]++
		}
	}
	var parts []string
	if len(to) > 0 {
		limit := 4
		if v.wide {
			limit = 0
		}
		parts = append(parts, "may move to "+listed(ranges(sortedKeysOf(to)), limit))
	}
	for _, kind := range []struct {
		n     int
		words string
	}{{open, "may fit on nodes that were not looked into"}, {nowhere, "fits nowhere"}, {unknown, "cannot be placed by these rules"}} {
		if kind.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", kind.n, kind.words))
		}
	}
	return strings.Join(parts, ", ")
}

func sortedKeysOf(of map[string]int) []string {
	out := make([]string, 0, len(of))
	for k := range keys(of) {
		out = append(out, k)
	}
	return sorted(out)
}
