package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/safedrain/safedrain/internal/claim"
)

// TestKilled ends a drain by kill -9 in every step. The claim on the node tells the next run of the same command where to go
// on, and uncordon what to undo.
func TestKilled(t *testing.T) {
	for name, at := range steps {
		t.Run(name, func(t *testing.T) {
			for then, check := range map[string]func(*step){"resumed": (*step).resume, "undone": (*step).undo} {
				t.Run(then, func(t *testing.T) {
					s := at(t)
					s.reach().kill()
					check(s)
				})
			}
		})
	}
}

// resume runs the command again. That the run before is dead shows after a minute without a sign of it; --take-over says so.
func (s *step) resume() {
	s.Helper()
	s.free()
	wantRun(s.Env, 0, []string{"node/" + s.victim + " drained"}, s.command("--take-over")...)
	s.drained()
	s.undo()
}

// TestKilledThenTheSameCommand adds nothing to the command: the next run watches the claim for a minute, then goes on.
func TestKilledThenTheSameCommand(t *testing.T) {
	s := steps["proving"](t)
	s.reach().kill()
	s.free()
	started := time.Now()
	wantRun(s.Env, 0, []string{"watching for up to", "drained"}, s.command()...)
	if took := time.Since(started); took < claim.DeadAfter {
		t.Errorf("it took the claim of a run that might live after %s", took)
	}
	s.drained()
}

// TestInterrupted ends a drain by a signal in every step: exit code 130, the state is kept, and the next run goes on at once.
func TestInterrupted(t *testing.T) {
	for name, at := range steps {
		t.Run(name, func(t *testing.T) {
			s := at(t)
			b := s.reach()
			b.signal(t, syscall.SIGINT)
			said, code := b.end()
			if code == 0 && name == "before it verifies" {
				s.undo() // it was over before the signal
				return
			}
			if code != 130 {
				t.Errorf("exit code %d, want 130\n%s", code, said)
			}
			wantSaid(t, said, "interrupted", "safedrain uncordon "+s.victim, "safedrain "+s.victim)
			if !getNode(s.Env, s.victim).Spec.Unschedulable {
				t.Errorf("the state is not kept\n%s", said)
			}
			s.free()
			wantRun(s.Env, 0, []string{"drained"}, s.command()...) // at once: no --take-over
			s.drained()
			s.undo()
		})
	}
}

// TestInterruptedTwice leaves at once; TERM is as good as INT.
func TestInterruptedTwice(t *testing.T) {
	s := steps["evicting and a pod terminates"](t)
	b := s.reach()
	b.signal(t, syscall.SIGTERM)
	b.signal(t, syscall.SIGINT)
	started := time.Now()
	said, code := b.end()
	if code != 130 || time.Since(started) > 20*time.Second {
		t.Errorf("exit code %d after %s, want 130 at once\n%s", code, time.Since(started), said)
	}
	s.resume()
}

// TestInterruptedRollback undoes what was set, and leaves what was evicted.
func TestInterruptedRollback(t *testing.T) {
	s := steps["proving"](t)
	b := s.reach("--rollback")
	b.signal(t, syscall.SIGINT)
	if said, code := b.end(); code != 130 {
		t.Errorf("exit code %d, want 130\n%s", code, said)
	}
	s.standsAsBefore(s.victim)
	for _, pod := range podsOn(s.Env, s.victim) {
		if pod.Name == "web-0" && pod.DeletionTimestamp != nil {
			t.Error("a pod of a Service that was not proven out was evicted")
		}
	}
}
