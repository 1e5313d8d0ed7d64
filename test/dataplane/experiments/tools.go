package experiments

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/safedrain/safedrain/test/dataplane"
)

// EnvSafedrain names a ready safedrain to measure in place of one that is built from the sources around.
const EnvSafedrain = "DATAPLANE_SAFEDRAIN"

// Tools are the programs that are compared.
type Tools struct {
	Kubectl, Safedrain string // paths
	Root               string // of the sources of safedrain
	Commit             string // the state of the sources
	Build              string // digest of the safedrain program
}

// FindTools builds safedrain into a directory, unless a ready one is named, and finds kubectl.
func FindTools(ctx context.Context, kubectl func() (string, error), dir string) (*Tools, error) {
	root, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, err
	}
	root = filepath.Dir(root) // the module of safedrain holds the one of its tests
	t := &Tools{Safedrain: os.Getenv(EnvSafedrain), Root: root}
	if t.Kubectl, err = kubectl(); err != nil {
		return nil, err
	}
	if t.Safedrain == "" {
		t.Safedrain = filepath.Join(dir, "safedrain")
		// No stamps: the digest changes only when the program does.
		if _, err := output(ctx, root, "go", "build", "-trimpath", "-buildvcs=false", "-o", t.Safedrain, "./cmd/safedrain"); err != nil {
			return nil, err
		}
	}
	program, err := os.ReadFile(t.Safedrain)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(program)
	t.Build = hex.EncodeToString(sum[:])[:12]
	if t.Commit, err = output(ctx, root, "git", "describe", "--always", "--dirty"); err != nil {
		t.Commit = "unknown" // sources without their history
	}
	return t, nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// ending is how a command ended.
type ending struct {
	argv           []string
	code           int
	stdout, stderr string
	began, ended   time.Time
}

func (e *ending) String() string {
	return fmt.Sprintf("%s: exit %d after %s\n%s%s", strings.Join(e.argv, " "), e.code, e.ended.Sub(e.began).Round(time.Millisecond),
		lastLines(e.stdout), lastLines(e.stderr))
}

// short is the command without its flags, and its error in one line.
func (e *ending) short() string {
	words := slices.DeleteFunc(slices.Clone(e.argv), func(arg string) bool { return strings.HasPrefix(arg, "-") || arg == "json" })
	text := fmt.Sprintf("%s: exit code %d", strings.Join(words, " "), e.code)
	for line := range strings.Lines(e.stderr) {
		if message, ok := strings.CutPrefix(line, "error: "); ok {
			return text + ": " + strings.TrimSpace(message)
		}
	}
	return text
}

func lastLines(s string) string {
	lines := strings.SplitAfter(s, "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "")
}

// call runs a tool on the lab's cluster to its end, whatever its exit code.
func call(ctx context.Context, lab *dataplane.Lab, program string, args ...string) (*ending, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+lab.Kubeconfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	e := &ending{argv: append([]string{filepath.Base(program)}, args...), began: time.Now()}
	err := cmd.Run()
	e.ended, e.stdout, e.stderr = time.Now(), stdout.String(), stderr.String()
	e.code = cmd.ProcessState.ExitCode()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return e, fmt.Errorf("run %s: %w", e.argv[0], err)
	}
	return e, nil
}
