package casetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// missing compares a part of a report with the report. It returns "" when the part is in it, else where it is not:
// in a map every key that the part names must be there with that value; in a list every element that the part names must
// match some element; anything else must be equal.
func missing(part, report any, at string) string {
	switch p := part.(type) {
	case map[string]any:
		r, ok := report.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: want a map, got %s", name(at), show(report))
		}
		for _, k := range slices.Sorted(maps.Keys(p)) {
			v, ok := r[k]
			if !ok {
				return fmt.Sprintf("%s: no key %q, want %s", name(at), k, show(p[k]))
			}
			if why := missing(p[k], v, join(at, k)); why != "" {
				return why
			}
		}
		return ""
	case []any:
		r, ok := report.([]any)
		if !ok {
			return fmt.Sprintf("%s: want a list, got %s", name(at), show(report))
		}
		for _, want := range p {
			if !slices.ContainsFunc(r, func(got any) bool { return missing(want, got, at) == "" }) {
				return fmt.Sprintf("%s: no element matches %s%s", name(at), show(want), nearest(want, r, at))
			}
		}
		return ""
	default:
		if !equal(part, report) {
			return fmt.Sprintf("%s: want %s, got %s", name(at), show(part), show(report))
		}
		return ""
	}
}

// nearest says for a list of one what is wrong with its element, and else lists what is there.
func nearest(want any, got []any, at string) string {
	if len(got) == 1 {
		return ": " + missing(want, got[0], at+"[0]")
	}
	return ", got " + show(got)
}

// equal compares scalars: numbers by value, all else by type and value.
func equal(a, b any) bool {
	an, aok := a.(json.Number)
	bn, bok := b.(json.Number)
	if aok && bok {
		af, errA := an.Float64()
		bf, errB := bn.Float64()
		return errA == nil && errB == nil && af == bf
	}
	return !aok && !bok && a == b
}

// step is one key of a path; list says that the elements of the list there are meant.
type step struct {
	key  string
	list bool
}

// everywhere is the path of every map anywhere in a report.
const everywhere = "**"

// parsePath splits "services[].findings[]" into its steps; nil for "**".
func parsePath(path string) ([]step, error) {
	if path == everywhere {
		return nil, nil
	}
	var steps []step
	for _, part := range strings.Split(path, ".") {
		key, list := strings.CutSuffix(part, "[]")
		if key == "" || strings.ContainsAny(key, "[]* ") {
			return nil, fmt.Errorf("path %q is not made of keys, with [] after a list, or **", path)
		}
		steps = append(steps, step{key, list})
	}
	return steps, nil
}

// at returns the values at a path. A path whose first key the report does not have is an error: nothing could ever be
// there.
func at(report any, path string) ([]any, error) {
	steps, err := parsePath(path)
	if err != nil {
		return nil, err
	}
	if steps == nil {
		return allMaps(report, nil), nil
	}
	top, ok := report.(map[string]any)
	if _, has := top[steps[0].key]; !ok || !has {
		return nil, fmt.Errorf("path %s: the report has no %s", path, steps[0].key)
	}
	values := []any{report}
	for _, s := range steps {
		var next []any
		for _, v := range values {
			m, ok := v.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("path %s: %s is looked for in %s", path, s.key, show(v))
			}
			inner, ok := m[s.key]
			if !ok {
				continue
			}
			if !s.list {
				next = append(next, inner)
				continue
			}
			list, ok := inner.([]any)
			if !ok && inner != nil {
				return nil, fmt.Errorf("path %s: %s is no list but %s", path, s.key, show(inner))
			}
			next = append(next, list...)
		}
		values = next
	}
	return values, nil
}

// allMaps appends every map in v, v included, to found.
func allMaps(v any, found []any) []any {
	switch t := v.(type) {
	case map[string]any:
		found = append(found, t)
		for _, k := range slices.Sorted(maps.Keys(t)) {
			found = allMaps(t[k], found)
		}
	case []any:
		for _, inner := range t {
			found = allMaps(inner, found)
		}
	}
	return found
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

func name(at string) string {
	if at == "" {
		return "report"
	}
	return at
}

func show(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	const most = 600
	if len(raw) > most {
		return string(raw[:most]) + "..."
	}
	return string(raw)
}
