package cluster

import (
	"hash/maphash"
	"maps"
)

// interner keeps one copy of each string of a listing: node names, label keys and label values repeat thousands of
// times, and a decoder allocates every one of them anew. It is used by one goroutine at a time.
type interner map[string]string

// of returns the kept copy of s.
func (in interner) of(s string) string {
	if s == "" {
		return ""
	}
	if kept, ok := in[s]; ok {
		return kept
	}
	in[s] = s
	return s
}

// labels replaces the keys and values of m by their kept copies.
func (in interner) labels(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	for k, v := range m {
		m[in.of(k)] = in.of(v) // assigning to a present key replaces the key's storage too
	}
	return m
}

// labelSets keeps one map of each set of labels: all pods of a workload's revision have the same. Kept maps must not change.
type labelSets struct {
	in   interner
	seed maphash.Seed
	sets map[uint64][]map[string]string
}

func newLabelSets(in interner) *labelSets {
	return &labelSets{in: in, seed: maphash.MakeSeed(), sets: map[uint64][]map[string]string{}}
}

// of returns the kept map that equals m.
func (s *labelSets) of(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var sum uint64
	for k, v := range m { // in any order
		sum += maphash.Comparable(s.seed, [2]string{k, v})
	}
	for _, kept := range s.sets[sum] {
		if maps.Equal(kept, m) {
			return kept
		}
	}
	m = s.in.labels(m)
	s.sets[sum] = append(s.sets[sum], m)
	return m
}
