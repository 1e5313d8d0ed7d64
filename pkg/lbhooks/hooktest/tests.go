package hooktest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// describes checks the static side: what a hook needs, it names in full.
func (s *suite) describes() {
	d := s.hook.Describe()
	if d.Name == "" {
		s.Error("a hook without a name")
	}
	if s.traits.Witness && d.Witness == "" && d.Settle != 0 {
		s.Error("a settle time after a proof, but no witness")
	}
	for _, n := range d.Needs {
		if n.Version == "" || n.Resource == "" || n.Kind == "" || len(n.Verbs) == 0 {
			s.Errorf("an incomplete need: %+v", n)
		}
		if n.Why == "" {
			s.Errorf("need %s does not say what it is for", n.Resource)
		}
	}
}

// beforeAndAfter: in proves nothing; out proves, where there is a witness; and in again is no longer out.
func (s *suite) beforeAndAfter() {
	if p := s.prove(); p.Out {
		s.Fatalf("in rotation, and Prove says out: %s", p.Evidence)
	}
	s.show(Out)
	p := s.prove()
	if p.Out != s.traits.Witness {
		s.Fatalf("after the node left Out is %t, want %t: %s", p.Out, s.traits.Witness, p.Evidence)
	}
	if p.By != s.traits.By {
		s.Errorf("By %q, want %q", p.By, s.traits.By)
	}
	s.show(In)
	if p := s.prove(); p.Out {
		s.Errorf("back in rotation, and Prove says out: %s", p.Evidence)
	}
}

func (s *suite) idempotent() {
	for range 2 {
		if err := s.hook.Withdraw(s.Context(), s.target); err != nil {
			s.Fatalf("Withdraw: %v", err)
		}
	}
	s.show(Out)
	if err := s.hook.Withdraw(s.Context(), s.target); err != nil {
		s.Fatalf("Withdraw after it left: %v", err)
	}
	for range 2 {
		if err := s.hook.Restore(s.Context(), s.target); err != nil {
			s.Fatalf("Restore: %v", err)
		}
	}
	s.show(In)
	if p := s.prove(); p.Out {
		s.Errorf("restored, and Prove says out: %s", p.Evidence)
	}
}

// leavesLater: every observation before the removal is reported, and the first one after it ends the wait.
func (s *suite) leavesLater() {
	s.needsWitness()
	seen := 0
	p, err := s.wait(s.Context(), s.pace, func(n int, p lbhooks.Pending) {
		seen = n
		if p.Err != nil || p.Proof.Out {
			s.Errorf("observation %d: out %t, error %v", n, p.Proof.Out, p.Err)
		}
		if n == 3 {
			s.show(Out)
		}
	})
	if err != nil || !p.Out {
		s.Fatalf("Wait: %+v, %v", p, err)
	}
	if seen != 3 {
		s.Errorf("%d observations were reported before the proof, want 3", seen)
	}
}

func (s *suite) timesOut() {
	opts := s.pace
	opts.Timeout = s.slowly(40 * time.Millisecond)
	_, err := s.wait(s.Context(), opts, nil)
	s.wantNotProven(err)
}

func (s *suite) obeysContext() {
	ctx, cancel := context.WithTimeout(s.Context(), s.slowly(40*time.Millisecond))
	defer cancel()
	if _, err := s.wait(ctx, s.pace, nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lbhooks.ErrNotProven) {
		s.Errorf("Wait: %v, want the error of the context", err)
	}
	gone, cancel := context.WithCancel(s.Context())
	cancel()
	if p, err := s.hook.Prove(gone, s.target); err == nil && p.Out {
		s.Errorf("Prove with an ended context says out: %s", p.Evidence)
	}
}

func (s *suite) slow() {
	s.needs(Slow)
	s.b.Fail(Slow)
	ctx, cancel := context.WithTimeout(s.Context(), s.slowly(50*time.Millisecond))
	defer cancel()
	began := time.Now()
	if p, err := s.hook.Prove(ctx, s.target); err == nil && p.Out {
		s.Errorf("Prove says out of a balancer that does not answer: %s", p.Evidence)
	}
	if took := time.Since(began); took > 30*time.Second {
		s.Errorf("Prove returned %s after a deadline of %s", took, s.slowly(50*time.Millisecond))
	}
}

// otherStates: what is not surely out is not proven, however long it lasts.
func (s *suite) otherStates() {
	for _, state := range s.traits.States {
		s.show(state)
		want := s.traits.Witness && slices.Contains(s.traits.Out, state)
		if p := s.prove(); p.Out != want {
			s.Errorf("%s: Out is %t, want %t: %s", state, p.Out, want, p.Evidence)
		}
	}
}

// flapping: out that does not last for the observations asked for is no proof.
func (s *suite) flapping() {
	s.needsWitness()
	opts := s.pace
	opts.Stable = 2
	longest := 0
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	_, err := s.wait(ctx, opts, func(n int, p lbhooks.Pending) {
		longest = max(longest, p.InARow)
		if n%2 == 1 {
			s.show(Out)
		} else {
			s.show(In)
		}
		if n == 12 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		s.Errorf("Wait: %v, want that it goes on until its context ends", err)
	}
	if longest != 1 {
		s.Errorf("%d in a row said out, want 1: the test did not flap", longest)
	}
	s.show(Out)
	if p, err := s.wait(s.Context(), opts, nil); err != nil || !p.Out {
		s.Errorf("Wait once it stays out: %+v, %v", p, err)
	}
}

func (s *suite) flaky() {
	s.needs(Flaky)
	s.needsWitness()
	s.b.Fail(Flaky)
	failures := 0
	p, err := s.wait(s.Context(), s.pace, func(n int, p lbhooks.Pending) {
		if p.Err != nil {
			failures++
		}
		if n == 2 {
			s.b.Fail(Healthy)
			s.show(Out)
		}
	})
	if err != nil || !p.Out {
		s.Fatalf("Wait: %+v, %v", p, err)
	}
	if failures != 2 {
		s.Errorf("%d failures were reported, want 2", failures)
	}
	s.b.Fail(Flaky)
	opts := s.pace
	opts.Timeout = s.slowly(30 * time.Millisecond)
	_, err = s.wait(s.Context(), opts, nil)
	s.wantNotProven(err)
}

// permanent: a hook that cannot work says so at once, also when it worked at first.
func (s *suite) permanent() {
	for _, f := range []Fault{Forbidden, NotServed} {
		if !slices.Contains(s.traits.Faults, f) {
			continue
		}
		s.b.Fail(Healthy)
		s.show(In)
		seen := 0
		_, err := s.wait(s.Context(), s.pace, func(n int, _ lbhooks.Pending) {
			seen = n
			if n == 2 {
				s.b.Fail(f)
			}
		})
		if !errors.Is(err, lbhooks.ErrUnavailable) || errors.Is(err, lbhooks.ErrNotProven) {
			s.Errorf("%s: %v, want ErrUnavailable", f, err)
		}
		if seen != 2 {
			s.Errorf("%s: %d observations before the end, want 2", f, seen)
		}
	}
}
