package controlplane

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRequiredVersion(t *testing.T) {
	const gomod = "module m\n\nrequire (\n\tk8s.io/kubernetes v1.37.2\n\tk8s.io/kubernetes-other v0.1.0 // indirect\n)\n\nrequire sigs.k8s.io/kwok v0.8.0\n"
	for path, want := range map[string]string{"k8s.io/kubernetes": "v1.37.2", "sigs.k8s.io/kwok": "v0.8.0", "k8s.io/kube": ""} {
		if got := requiredVersion([]byte(gomod), path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestRecipe shows that what makes the programs makes the key.
func TestRecipe(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gomod := func(kubernetes string) string {
		return "module m\n\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.7.3\n\tk8s.io/kubernetes " + kubernetes + "\n\tsigs.k8s.io/kwok v0.8.0\n)\n"
	}
	key := func() string {
		t.Helper()
		k, _, err := recipe(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write("go.mod", gomod("v1.37.2"))
	write("cmd/controlplane/main.go", "package main\n")
	first := key()
	write("README.md", "unrelated")
	write("go.mod", gomod("v1.37.2")+"\nrequire example.com/unrelated v1.0.0\n")
	if key() != first {
		t.Error("the key changed with something unrelated")
	}
	write("cmd/controlplane/main.go", "package main // changed\n")
	second := key()
	write("go.mod", gomod("v1.37.3"))
	if second == first || key() == second {
		t.Error("the key did not change with the sources or with a version")
	}
}

func TestProgramsFound(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{multiCall: 0o755, Etcd: 0o755, Kwok: 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	p := &Programs{dir: dir}
	for name, want := range map[string][]string{
		Etcd:      {filepath.Join(dir, Etcd)},
		Kwok:      {filepath.Join(dir, multiCall), Kwok}, // its own file is no executable
		APIServer: {filepath.Join(dir, multiCall), APIServer},
	} {
		path, args, err := p.command(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, append([]string{path}, args...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, _, err := (&Programs{dir: t.TempDir()}).command(Etcd); err == nil {
		t.Error("a program was found in an empty directory")
	}
}

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second lock: %v, want to wait in vain", err)
	}
	unlock()
	unlock, err = lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
