package cli_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/safedrain/safedrain/internal/casetest"
)

// capabilities are those that cases ask for by name: to say where replacements can run, and what a scaling does.
var capabilities = []string{"placement", "scale"}

// binary is the real program: the one that SAFEDRAIN_TEST_BINARY names, else built for the test.
func binary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("SAFEDRAIN_TEST_BINARY"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "safedrain")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "github.com/safedrain/safedrain/cmd/safedrain").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// TestCases runs every folder of testdata/cases through the built binary.
func TestCases(t *testing.T) {
	root := filepath.Join("..", "..", "testdata", "cases")
	dirs, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	program := binary(t)
	ran := 0
	for _, dir := range dirs {
		path := filepath.Join(root, dir.Name())
		if !dir.IsDir() {
			continue
		}
		ran++
		t.Run(dir.Name(), func(t *testing.T) {
			casetest.Run(t, path, func(args []string) ([]byte, int) { return runProgram(t, program, args) }, capabilities...)
		})
	}
	if ran < 40 {
		t.Errorf("only %d cases ran", ran)
	}
}

// runProgram runs the program without a cluster in reach.
func runProgram(t *testing.T, program string, args []string) (stdout []byte, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out.Bytes(), 0
	case errors.As(err, &exit):
		t.Logf("stderr: %s", errOut.Bytes())
		return out.Bytes(), exit.ExitCode()
	}
	t.Fatalf("run %v: %v", args, err)
	return nil, -1
}
