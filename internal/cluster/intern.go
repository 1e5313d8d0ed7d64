package cluster

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
