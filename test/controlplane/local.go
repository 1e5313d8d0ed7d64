package controlplane

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	testModule = "github.com/safedrain/safedrain/test"
	rootModule = "github.com/safedrain/safedrain"
	keptBuilds = 8 // of one local program, so that changes to its sources do not fill the disk
)

// LocalProgram returns the path of a program of the module of the tests, ./cmd/NAME, built with the flags of the control
// plane. It is kept in the cache under a key that follows from the pinned versions and the sources of every package of
// these modules that it imports. A program of that name in SAFEDRAIN_TEST_BIN comes first.
func LocalProgram(ctx context.Context, name string) (string, error) {
	if path := filepath.Join(os.Getenv(EnvBin), name); os.Getenv(EnvBin) != "" && executable(path) {
		return path, nil
	}
	module, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	versions, flags, err := recipe(ctx, module)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, _ = fmt.Fprintln(sum, versions) // a hash takes everything
	if err := hashImports(sum, module, testModule+"/cmd/"+name); err != nil {
		return "", err
	}
	target := map[string]string{name: "./cmd/" + name}
	dir, err := buildInto(ctx, module, name+"-"+hex.EncodeToString(sum.Sum(nil))[:12], target, flags)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return filepath.Join(dir, name), prune(filepath.Dir(dir), name)
}

// hashImports hashes the sources of a package and of every package of these modules that it imports, tests left out.
func hashImports(w io.Writer, module, path string) error {
	seen := map[string]bool{path: true}
	for queue := []string{path}; len(queue) > 0; queue = queue[1:] {
		dir := filepath.Join(module, "..", strings.TrimPrefix(queue[0], rootModule))
		if rest, ok := strings.CutPrefix(queue[0], testModule); ok {
			dir = filepath.Join(module, rest)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		for _, file := range files { // Glob sorts
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			imports, err := hashSource(w, file)
			if err != nil {
				return err
			}
			for _, imported := range imports {
				if !seen[imported] {
					seen[imported] = true
					queue = append(queue, imported)
				}
			}
		}
	}
	return nil
}

// hashSource hashes one file and returns which packages of these modules it imports.
func hashSource(w io.Writer, file string) ([]string, error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(w, "%s %d\n%s", filepath.Base(file), len(source), source); err != nil {
		return nil, err
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var imports []string
	for _, spec := range parsed.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(path, rootModule+"/") {
			imports = append(imports, path)
		}
	}
	return imports, nil
}

// prune removes the oldest builds of a local program.
func prune(cache, name string) error {
	dirs, err := filepath.Glob(filepath.Join(cache, name+"-*"))
	if err != nil || len(dirs) <= keptBuilds {
		return err
	}
	built := map[string]int64{} // seconds
	for _, dir := range dirs {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			built[dir] = info.ModTime().Unix()
		}
	}
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return built[dir] == 0 }) // being built
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(built[b], built[a]) })
	var errs []error
	for _, dir := range dirs[min(keptBuilds, len(dirs)):] {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
