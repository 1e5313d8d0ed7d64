package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// EnvSafedrain names a ready safedrain; nothing is built then.
const EnvSafedrain = "SAFEDRAIN_TEST_BINARY"

// Safedrain returns the path of the program under test: the one that SAFEDRAIN_TEST_BINARY names, else one that is built
// into dir from this tree, in its own module and so with the versions that are shipped.
func Safedrain(ctx context.Context, dir string) (string, error) {
	if path := os.Getenv(EnvSafedrain); path != "" {
		return filepath.Abs(path)
	}
	module, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "safedrain")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "./cmd/safedrain")
	cmd.Dir = filepath.Dir(module)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build safedrain: %w\n%s", err, out)
	}
	return path, nil
}
