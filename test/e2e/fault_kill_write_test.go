package e2e

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// mostWrites is more than any command here writes to the API server.
const mostWrites = 20

// killAtWrite runs safedrain and ends it as kill -9 does when it sends its nth write, which never arrives. It reports
// whether the run came that far.
func (s *step) killAtWrite(n int32, args ...string) bool {
	s.Helper()
	var writes atomic.Int32
	var b *begun
	direct := s.via
	started := make(chan struct{})
	r := s.relay(nil)
	r.hold = func(req *http.Request) {
		if req.Method != http.MethodGet && writes.Add(1) == n {
			<-started
			b.kill()
			panic(http.ErrAbortHandler)
		}
	}
	b = program{path: binary, kubeconfig: s.via}.begin(s, args...)
	close(started)
	<-b.over
	s.via = direct
	return writes.Load() >= n
}

// TestKilledWhileUndoing ends uncordon, and the undoing of a drain, by kill -9 at each of its writes. The next uncordon finds
// what is left to undo, and the node is exactly as before.
func TestKilledWhileUndoing(t *testing.T) {
	for name, run := range map[string]func(s *step, n int32) bool{
		"uncordon": func(s *step, n int32) bool {
			wantRun(s.Env, 0, []string{"drained"}, s.command("--settle=0s")...)
			return s.killAtWrite(n, "uncordon", "--wait-timeout=5s", s.victim)
		},
		"rollback": func(s *step, n int32) bool {
			return s.killAtWrite(n, s.command("--rollback", "--hook-timeout=1s")...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStep(t)
			if name == "uncordon" {
				s.obey()
			}
			n, came := int32(1), true
			for ; came && n < mostWrites; n++ {
				came = run(s, n)
				s.back(s.victim)
				for _, pod := range []string{"web-0", "batch-0"} {
					s.there(pod)
				}
			}
			if n < 4 || n == mostWrites {
				t.Errorf("killed at %d writes", n-1)
			}
		})
	}
}

// there puts a pod back on the victim that a run evicted.
func (s *step) there(name string) {
	s.Helper()
	stays := false
	s.Wait("pod "+name+" stays or is gone", func(context.Context) (bool, string, error) {
		pods := podsOn(s.Env, s.victim)
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name })
		stays = i >= 0 && pods[i].DeletionTimestamp == nil
		return i < 0 || stays, "it terminates", nil
	})
	if stays {
		return
	}
	app, _, _ := strings.Cut(name, "-")
	s.pod(app, name, s.victim)
	if app == "web" {
		s.EndpointsReady("web", 2)
	}
}
