package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// OtherModule returns the directory of a module below that of the tests, which has a go.mod of its own.
func OtherModule(ctx context.Context, name string) (string, error) {
	module, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(module, name), nil
}

// OtherPrograms returns a directory of the cache with programs that a module below that of the tests pins, and builds
// those that are not there. The targets are package paths by the programs' names. The key follows from the go.mod, go.sum and
// sources of that module, the Go release and the platform.
func OtherPrograms(ctx context.Context, name string, targets map[string]string) (string, error) {
	module, err := OtherModule(ctx, name)
	if err != nil {
		return "", err
	}
	flags := []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w"}
	sum := sha256.New()
	version, err := goEnv(ctx, module, "GOVERSION", "GOOS", "GOARCH", "CGO_ENABLED")
	if err != nil {
		return "", err
	}
	_, _ = fmt.Fprintln(sum, version, flags) // a hash takes everything
	for _, file := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", file, len(content), content)
	}
	if err := hashSources(sum, module); err != nil {
		return "", err
	}
	dir, err := buildInto(ctx, module, name+"-"+hex.EncodeToString(sum.Sum(nil))[:12], targets, flags)
	if err != nil {
		return "", fmt.Errorf("build the programs of module %s: %w", name, err)
	}
	return dir, nil
}
