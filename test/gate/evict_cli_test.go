package gate

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/gate/admission"
	"github.com/safedrain/safedrain/test/controlplane"
)

// TestEvictOwnDrains: safedrain drains a node through a gate that enforces, whichever way its Services let the node go: its
// claim says of each from when on its pods may go.
func TestEvictOwnDrains(t *testing.T) {
	for name, tc := range map[string]struct {
		services func(*evictScene) map[string]func(*corev1.Service)
		alone    bool // every endpoint is on the node
		args     []string
	}{
		"accepted unproven": {
			func(*evictScene) map[string]func(*corev1.Service) {
				return map[string]func(*corev1.Service){"edge": func(*corev1.Service) {}}
			}, false, []string{"--accept-unproven=all"},
		},
		"forced": {
			func(*evictScene) map[string]func(*corev1.Service) {
				return map[string]func(*corev1.Service){"edge": func(*corev1.Service) {}}
			}, true, []string{"--force-unsafe=all"},
		},
		"nobody sends": {
			func(*evictScene) map[string]func(*corev1.Service) {
				return map[string]func(*corev1.Service){"edge": func(svc *corev1.Service) {
					svc.Annotations = map[string]string{"safedrain.dev/nodes": "none"}
				}}
			}, false, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEvictScene(t, 2, admission.Enforce)
			nodes := s.Nodes(2)
			for service, change := range tc.services(s) {
				s.Service(service, change)
				s.Pod(service+"-a", nodes[0], labelled(service))
				s.Pod(service+"-b", nodes[0], labelled(service))
				ready := 2
				if !tc.alone {
					s.Pod(service+"-c", nodes[1], labelled(service))
					ready = 3
				}
				s.seen(service, ready)
				s.mark(service+"-a", service)
			}
			args := append([]string{nodes[0], "--force", "--timeout=60s"}, tc.args...)
			out, code := s.safedrain(args...)
			if code != 0 || strings.Contains(out, "webhook evict.safedrain.dev") {
				t.Errorf("code %d:\n%s", code, out)
			}
		})
	}
}

// safedrain runs the built program and returns all that it said.
func (s *evictScene) safedrain(args ...string) (string, int) {
	s.Helper()
	return safedrain(s.TB, s.Cluster, args...)
}

// safedrain runs the built program, as somebody who may do everything in a cluster, and returns all that it said.
func safedrain(t testing.TB, c *controlplane.Cluster, args ...string) (string, int) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.Kubeconfig(config); err != nil {
		t.Fatal(err)
	}
	return safedrainAs(t, config, args...)
}

// safedrainAs runs the built program as a kubeconfig says.
func safedrainAs(t testing.TB, config string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KUBECONFIG=" + config}
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run()
	return out.String(), cmd.ProcessState.ExitCode()
}
