package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// pinned are the modules whose versions make the programs what they are.
var pinned = []string{"k8s.io/kubernetes", "go.etcd.io/etcd/server/v3", "sigs.k8s.io/kwok"}

// CacheDir is the directory in which built programs and the state of a lasting cluster are kept.
func CacheDir() (string, error) {
	if dir := os.Getenv(EnvCache); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory, or set %s: %w", EnvCache, err)
	}
	return filepath.Join(dir, "safedrain"), nil
}

// build returns the directory of the cache that holds the programs, after it filled it if need be.
func build(ctx context.Context) (string, error) {
	module, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	key, flags, err := recipe(ctx, module)
	if err != nil {
		return "", err
	}
	targets := map[string]string{multiCall: "./cmd/controlplane", kubectl: "k8s.io/kubernetes/cmd/kubectl"}
	return buildInto(ctx, module, "controlplane-"+key, targets, flags)
}

// buildInto returns a directory of the cache, after it filled it with the targets that were not there.
func buildInto(ctx context.Context, module, name string, targets map[string]string, flags []string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name)
	if missing(dir, targets) == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	for _, name := range missing(dir, targets) { // another process may have built them meanwhile
		if err := compile(ctx, module, targets[name], filepath.Join(dir, name), flags); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// missing lists the targets that are not in dir, sorted.
func missing(dir string, targets map[string]string) []string {
	var names []string
	for name := range targets {
		if !executable(filepath.Join(dir, name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// compile builds one program beside its place and then renames it there, so that nobody ever sees half of it.
func compile(ctx context.Context, module, target, output string, flags []string) error {
	fmt.Fprintf(os.Stderr, "building %s into %s (once for these versions and sources; about 15 minutes on two cores with an empty Go build cache)\n",
		filepath.Base(output), filepath.Dir(output))
	started := time.Now()
	partial := output + ".partial"
	args := append([]string{"build", "-o", partial}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, target)...)
	cmd.Dir = module
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("go build %s: %w", target, err), os.RemoveAll(partial))
	}
	if err := os.Rename(partial, output); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "built %s in %s\n", filepath.Base(output), time.Since(started).Round(time.Second))
	return nil
}

// moduleDir is the directory of the module that pins the versions: the one that the tests run in.
func moduleDir(ctx context.Context) (string, error) {
	file, err := goEnv(ctx, "", "GOMOD")
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(file)
	if _, err := os.Stat(filepath.Join(dir, "cmd", multiCall)); err != nil {
		return "", fmt.Errorf("run inside the module of the tests, or set %s: %w", EnvBin, err)
	}
	return dir, nil
}

// recipe returns the key of the cache and the flags of the build. Both follow from the pinned versions, the Go release,
// the platform and the sources of the multi-call program.
func recipe(ctx context.Context, module string) (key string, flags []string, err error) {
	sum := sha256.New()
	version, err := goEnv(ctx, module, "GOVERSION", "GOOS", "GOARCH", "CGO_ENABLED")
	if err != nil {
		return "", nil, err
	}
	_, _ = fmt.Fprintln(sum, version) // a hash takes everything
	gomod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", nil, err
	}
	var kubernetes string
	for _, path := range pinned {
		v := requiredVersion(gomod, path)
		if v == "" {
			return "", nil, fmt.Errorf("%s does not require %s", filepath.Join(module, "go.mod"), path)
		}
		if path == pinned[0] {
			kubernetes = v
		}
		_, _ = fmt.Fprintln(sum, path, v)
	}
	if err := hashSources(sum, filepath.Join(module, "cmd", multiCall)); err != nil {
		return "", nil, err
	}
	flags = buildFlags(kubernetes)
	_, _ = fmt.Fprintln(sum, flags)
	return hex.EncodeToString(sum.Sum(nil))[:12], flags, nil
}

// buildFlags stamps the version, which Kubernetes' own build takes from git.
func buildFlags(version string) []string {
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const stamp = " -X k8s.io/component-base/version."
	ldflags := "-s -w" + stamp + "gitVersion=" + version + stamp + "gitMajor=" + numbers[0] + stamp + "gitMinor=" + numbers[1]
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", ldflags}
}

func requiredVersion(gomod []byte, path string) string {
	m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(path) + `\s+(v\S+)`).FindSubmatch(gomod)
	if m == nil {
		return ""
	}
	return string(m[1])
}

func hashSources(w io.Writer, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	for _, file := range files { // Glob sorts
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s %d\n%s", filepath.Base(file), len(source), source); err != nil {
			return err
		}
	}
	return nil
}

func goEnv(ctx context.Context, dir string, names ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"env"}, names...)...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// lock waits for an exclusive lock on a file, which ends with the process at the latest.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %q: %w", path, ctx.Err()), f.Close())
		case <-tick.C:
		}
	}
}
