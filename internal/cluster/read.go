package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// MaxInput is the most that Read takes, all files together. It is far above the dump of the largest cluster and keeps
// an endless stream from filling the memory.
const MaxInput = 2 << 30

// MaxYAML is the most that one YAML document may hold: parsing YAML takes many times its size. Larger dumps are read as
// JSON.
const MaxYAML = 256 << 20

// manifestSuffixes are the files that are read from a directory.
var manifestSuffixes = []string{".yaml", ".yml", ".json"}

// Read builds a snapshot from files of Kubernetes objects: YAML or JSON, any number of documents, objects or Lists of
// them. A path is a file, a directory (read with its sub-directories: *.yaml, *.yml, *.json), or "-" for stdin. Kinds
// that neither the rules nor hooks read are counted, see [Snapshot.Counts]. An object that is there several times is
// taken from where its resourceVersion is highest; copies without one must agree.
func Read(ctx context.Context, paths []string, stdin io.Reader) (*Snapshot, error) {
	r := newReader()
	usedStdin := false
	for _, path := range paths {
		if path == "-" {
			if usedStdin {
				return nil, errors.New("stdin (-) is named twice")
			}
			usedStdin = true
			if err := r.stream(ctx, "stdin", stdin); err != nil {
				return nil, err
			}
			continue
		}
		files, err := manifests(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := r.file(ctx, file); err != nil {
				return nil, err
			}
		}
	}
	return r.listing().seal(), nil
}

// manifests lists the files to read for a path, sorted.
func manifests(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() && slices.Contains(manifestSuffixes, strings.ToLower(filepath.Ext(p))) {
			files = append(files, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read manifests: directory %s holds no *.yaml, *.yml or *.json", path)
	}
	return files, nil
}

func (r *reader) file(ctx context.Context, path string) error {
	f, err := os.Open(path) //nolint:gosec // the user names the files to read
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	defer func() { _ = f.Close() }()
	return r.stream(ctx, path, f)
}

// stream reads all documents of one input.
func (r *reader) stream(ctx context.Context, name string, from io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(from, r.left+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > r.left {
		return fmt.Errorf("read %s: more than %d MiB of input in all", name, MaxInput>>20)
	}
	r.left -= int64(len(data))
	docs, err := documents(data)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	for i, doc := range docs {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := r.document(ctx, doc); err != nil {
			return fmt.Errorf("%s: document %d (line %d): %w", name, i+1, doc.line, err)
		}
	}
	return nil
}
