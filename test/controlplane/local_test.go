package controlplane

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestHashImports shows that every source of these modules that a program is made of makes its key, and nothing else does.
func TestHashImports(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	key := func() string {
		t.Helper()
		sum := sha256.New()
		if err := hashImports(sum, filepath.Join(root, "test"), testModule+"/cmd/program"); err != nil {
			t.Fatal(err)
		}
		return hex.EncodeToString(sum.Sum(nil))
	}
	write("test/cmd/program/main.go", "package main\n\nimport (\n\t\"fmt\"\n\t\""+testModule+"/near\"\n)\n")
	write("test/near/near.go", "package near\n\nimport _ \""+rootModule+"/pkg/far\"\n")
	write("pkg/far/far.go", "package far\n")
	first := key()
	for name, tt := range map[string]struct {
		file, content string
		changes       bool
	}{
		"the program":      {"test/cmd/program/more.go", "package main\n", true},
		"an import":        {"test/near/near.go", "package near // changed\n\nimport _ \"" + rootModule + "/pkg/far\"\n", true},
		"an import's":      {"pkg/far/far.go", "package far // changed\n", true},
		"a test":           {"test/near/near_test.go", "package near\n", false},
		"another package":  {"test/other/other.go", "package other\n", false},
		"not a source":     {"pkg/far/README.md", "far\n", false},
		"the other module": {"pkg/other/other.go", "package other\n", false},
	} {
		before := key()
		write(tt.file, tt.content)
		if changed := key() != before; changed != tt.changes {
			t.Errorf("%s: the key changed: %v, want %v", name, changed, tt.changes)
		}
	}
	if key() == first {
		t.Error("the key is what it was before everything changed")
	}
}

// TestPrune shows that the newest builds are kept, and one that is under way.
func TestPrune(t *testing.T) {
	cache := t.TempDir()
	now := time.Now()
	for i, name := range []string{"p-0", "p-1", "p-2", "p-3", "p-4", "p-5", "p-6", "p-7", "p-8", "p-9", "other-1", "p-new"} {
		if err := os.Mkdir(filepath.Join(cache, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "p-new" {
			continue
		}
		file := filepath.Join(cache, name, "p")
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, now, now.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if err := prune(cache, "p"); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if diff := cmp.Diff([]string{"other-1", "p-2", "p-3", "p-4", "p-5", "p-6", "p-7", "p-8", "p-9", "p-new"}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
