package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ranges writes names that differ in a trailing number only as one: node-1, node-2 and node-3 become node-[1-3]; two stay as they are. Names
// are never cut; a name with a leading zero in its number stays as it is.
func ranges(names []string) []string {
	type numbered struct {
		prefix string
		n      int
	}
	groups := map[string][]int{}
	var out []string
	for _, name := range names {
		if prefix, n, ok := splitNumber(name); ok {
			groups[prefix] = append(groups[prefix], n)
		} else {
			out = append(out, name)
		}
	}
	var firsts []numbered
	for prefix, ns := range groups {
		slices.Sort(ns)
		for i := 0; i < len(ns); {
			j := i
			for j+1 < len(ns) && ns[j+1] <= ns[j]+1 {
				j++
			}
			if ns[j]-ns[i] < 2 {
				j = i // two names are shorter than their range
			}
			firsts = append(firsts, numbered{prefix + span(ns[i], ns[j]), ns[i]})
			i = j + 1
		}
	}
	slices.SortFunc(firsts, func(a, b numbered) int {
		pa, _, _ := strings.Cut(a.prefix, "[")
		pb, _, _ := strings.Cut(b.prefix, "[")
		return cmp.Or(strings.Compare(strings.TrimRight(pa, "0123456789"), strings.TrimRight(pb, "0123456789")), a.n-b.n)
	})
	for _, f := range firsts {
		out = append(out, f.prefix)
	}
	return out
}

func span(from, to int) string {
	if from == to {
		return strconv.Itoa(from)
	}
	return fmt.Sprintf("[%d-%d]", from, to)
}

func splitNumber(name string) (prefix string, n int, ok bool) {
	prefix = strings.TrimRight(name, "0123456789")
	digits := name[len(prefix):]
	if prefix == "" || digits == "" || len(digits) > 9 || len(digits) > 1 && digits[0] == '0' {
		return "", 0, false
	}
	n, err := strconv.Atoi(digits)
	return prefix, n, err == nil
}

// listed joins names and ends a long list in "+9 (-o wide)".
func listed(names []string, most int) string {
	if most > 0 && len(names) > most {
		return fmt.Sprintf("%s +%d (-o wide)", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// count writes a number with its noun: "1 Service", "2 Services".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, plural(noun))
}

func plural(noun string) string {
	switch {
	case strings.HasSuffix(noun, "y") && !strings.HasSuffix(noun, "ay"):
		return strings.TrimSuffix(noun, "y") + "ies"
	case strings.HasSuffix(noun, "ss"):
		return noun + "es"
	default:
		return noun + "s"
	}
}
