package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	const in = "# x\n<!-- flags -->\nstale-text\n<!-- /flags -->\n<!-- a comment -->\n<!-- example:refused -->\nstale-text\n<!-- /example -->\nend\n"
	got, err := generate(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `--ignore-daemonsets` | `false` |", "| `-l`, `--selector` |", "| `--accept-unproven` |", "<!-- a comment -->",
		"$ safedrain plan --example node-1 --ignore-daemonsets\nnode/node-1 would be refused", "$ echo $?\n3\n", "\nend\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "stale-text") {
		t.Error("the old text is still there")
	}
	again, err := generate(got)
	if err != nil || again != got {
		t.Errorf("a second time it changes (%v)", err)
	}
}

func TestGenerateRefuses(t *testing.T) {
	if _, err := generate("# nothing\n"); !errors.Is(err, errMarkers) {
		t.Errorf("no markers: %v", err)
	}
	for name, in := range map[string]string{
		"no end":          "<!-- flags -->\n",
		"unknown example": "<!-- example:nothing -->\n<!-- /example -->\n",
		"not closed":      "<!-- flags\n",
	} {
		if _, err := generate(in); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte("<!-- example:after -->\n<!-- /example -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(file, true); err == nil {
		t.Error("-check accepts a file that is not up to date")
	}
	if err := run(file, false); err != nil {
		t.Fatal(err)
	}
	if err := run(file, true); err != nil {
		t.Errorf("-check after a run: %v", err)
	}
}
