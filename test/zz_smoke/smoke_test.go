package e2e

import (
	"strings"
	"testing"
)

// TestPrograms shows that the suite runs what it means to: this tree's safedrain and a kubectl of the cluster's version.
func TestPrograms(t *testing.T) {
	stdout, stderr, code := run(t, "version")
	if code != 0 || !strings.Contains(stdout, "v1.37.2") {
		t.Errorf("safedrain version: exit code %d, want 0 and the server's v1.37.2\n%s%s", code, stdout, stderr)
	}
	if out := kubectl(t, "version"); strings.Count(out, "v1.37.2") != 2 {
		t.Errorf("kubectl version: want v1.37.2 for client and server\n%s", out)
	}
	if _, stderr, code := run(t, "no-such-node"); code != 1 || !strings.Contains(stderr, "no-such-node") {
		t.Errorf("a node that is not there: exit code %d, want 1 and its name\n%s", code, stderr)
	}
}
