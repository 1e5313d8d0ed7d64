package results

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// recordsFile holds the records, one a line.
const recordsFile = "runs.jsonl"

// Store is the set of records in a directory.
type Store struct {
	dir     string
	records map[Key]*Record
}

// Open reads the records of a directory, which need not exist.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, records: map[Key]*Record{}}
	b, err := os.ReadFile(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	scanner := bufio.NewScanner(bytes.NewReader(b))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var r Record
		if err := json.Unmarshal(scanner.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", s.path(), err)
		}
		s.records[r.Key] = &r
	}
	return s, scanner.Err()
}

func (s *Store) path() string { return filepath.Join(s.dir, recordsFile) }

// Has reports whether a measurement was made with a build of safedrain.
func (s *Store) Has(key Key, build string) bool {
	r := s.records[key]
	return r != nil && r.Build == build
}

// Records returns all records in the order of their keys.
func (s *Store) Records() []*Record {
	all := make([]*Record, 0, len(s.records))
	for _, r := range s.records {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Record) int { return compareKeys(a.Key, b.Key) })
	return all
}

// Put adds records, in place of those with the same keys, and saves them all.
func (s *Store) Put(records ...*Record) error {
	for _, r := range records {
		s.records[r.Key] = r
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	for _, r := range s.Records() {
		if err := encoder.Encode(r); err != nil {
			return err
		}
	}
	return replaceFile(s.path(), b.Bytes())
}

// replaceFile writes a file whole or not at all.
func replaceFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, content, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}
