// Package hooktest is the contract that every hook keeps, as a suite that a hook's own test runs against a balancer that
// it scripts: once against doubles, and again against a real API server.
package hooktest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// State is what the balancer shows from now on.
type State string

// In: the node is in rotation. Moving: neither surely in nor out. Out: it left, and another node serves. Lying: the API
// says that it left, but it still answers. Nobody: no node serves.
const (
	In     State = "in"
	Moving State = "moving"
	Out    State = "out"
	Lying  State = "lying"
	Nobody State = "nobody"
)

// Fault is how the balancer's API answers from now on.
type Fault string

// Healthy ends a fault. Flaky: every call fails in a way that passes. Forbidden: credentials are lost. NotServed: the kind
// is not there. Slow: calls hang until their context ends.
const (
	Healthy   Fault = ""
	Flaky     Fault = "flaky"
	Forbidden Fault = "forbidden"
	NotServed Fault = "not served"
	Slow      Fault = "slow"
)

// Balancer is a balancer that does what a test tells it. A method may be called from one goroutine at a time.
type Balancer interface {
	// Hook returns the hook under test, the same each time.
	Hook() lbhooks.Hook
	// Target is the Service and the node of the test.
	Target() lbhooks.Target
	// Show makes the balancer show a state before it returns.
	Show(ctx context.Context, s State) error
	// Fail makes the balancer's API answer with a fault before it returns.
	Fail(f Fault)
	// Traits says what the suite may ask of this balancer.
	Traits() Traits
}

// Traits are what differs between balancers.
type Traits struct {
	Witness bool    // the hook can prove a removal; else it must never say out
	States  []State // the states it can show besides In and Out
	// Out are the states besides Out that count as out for this balancer, such as Nobody where each node stands alone.
	Out    []State
	Faults []Fault
	By     string // the node that takes over in the state Out, where the hook tells; else ""
	// Slowness multiplies the suite's times, for a balancer whose API is more than a double in memory; 0 stands for 1.
	Slowness int
}

// pace keeps the suite short: many observations within a moment. What is over early on success has a minute, for the
// machine may be busy.
var pace = lbhooks.WaitOptions{Timeout: time.Minute, Poll: 2 * time.Millisecond, MaxPoll: 5 * time.Millisecond, Stable: 1, Call: time.Minute}

// Run runs the suite. New returns a fresh balancer in the state In for every test.
func Run(t *testing.T, fresh func(t *testing.T) Balancer) {
	t.Helper()
	run(t, func(t *testing.T, test func(*testing.T)) { t.Helper(); test(t) }, fresh)
}

// RunInBubble runs the suite with the time of testing/synctest, for a balancer that is in memory as a whole.
func RunInBubble(t *testing.T, fresh func(t *testing.T) Balancer) {
	t.Helper()
	run(t, synctest.Test, fresh)
}

func run(t *testing.T, in func(*testing.T, func(*testing.T)), fresh func(t *testing.T) Balancer) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"describes itself", (*suite).describes},
		{"before and after", (*suite).beforeAndAfter},
		{"withdraw and restore are idempotent", (*suite).idempotent},
		{"leaves after some polls", (*suite).leavesLater},
		{"times out", (*suite).timesOut},
		{"obeys its context", (*suite).obeysContext},
		{"obeys its context when calls hang", (*suite).slow},
		{"states that prove nothing", (*suite).otherStates},
		{"flapping is no proof", (*suite).flapping},
		{"failures that pass are retried", (*suite).flaky},
		{"failures that do not pass end the wait", (*suite).permanent},
	} {
		t.Run(test.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				b := fresh(t)
				s := &suite{T: t, b: b, hook: b.Hook(), target: b.Target(), traits: b.Traits(), pace: pace}
				for _, d := range []*time.Duration{&s.pace.Poll, &s.pace.MaxPoll} {
					*d = s.slowly(*d)
				}
				test.run(s)
			})
		})
	}
}

// suite is one test of one balancer.
type suite struct {
	*testing.T
	b      Balancer
	hook   lbhooks.Hook
	target lbhooks.Target
	traits Traits
	pace   lbhooks.WaitOptions
}

// slowly is a time as this balancer needs it.
func (s *suite) slowly(d time.Duration) time.Duration {
	return d * time.Duration(max(s.traits.Slowness, 1))
}

func (s *suite) show(state State) {
	s.Helper()
	if err := s.b.Show(s.Context(), state); err != nil {
		s.Fatalf("Show(%s): %v", state, err)
	}
}

// prove makes one observation that must not fail.
func (s *suite) prove() lbhooks.Proof {
	s.Helper()
	p, err := s.hook.Prove(s.Context(), s.target)
	if err != nil {
		s.Fatalf("Prove: %v", err)
	}
	if p.Evidence == "" {
		s.Error("an observation without evidence")
	}
	return p
}

// wait waits with a callback that gets the number of observations that did not end the wait, from 1.
func (s *suite) wait(ctx context.Context, opts lbhooks.WaitOptions, pending func(n int, p lbhooks.Pending)) (lbhooks.Proof, error) {
	n := 0
	opts.Pending = func(p lbhooks.Pending) {
		n++
		if pending != nil {
			pending(n, p)
		}
	}
	return lbhooks.Wait(ctx, clock.RealClock{}, s.hook, s.target, opts)
}

// needs skips the test for a balancer without that fault.
func (s *suite) needs(f Fault) {
	s.Helper()
	for _, have := range s.traits.Faults {
		if have == f {
			return
		}
	}
	s.Skipf("this balancer is never %s", f)
}

// needsWitness skips the test for a hook that proves nothing.
func (s *suite) needsWitness() {
	s.Helper()
	if !s.traits.Witness {
		s.Skip("this hook has no witness")
	}
}

// wantNotProven checks the error of a wait that ran out of time.
func (s *suite) wantNotProven(err error) {
	s.Helper()
	var detail *lbhooks.NotProvenError
	switch {
	case !errors.Is(err, lbhooks.ErrNotProven), !errors.As(err, &detail):
		s.Fatalf("Wait: %v, want ErrNotProven", err)
	case errors.Is(err, lbhooks.ErrUnavailable):
		s.Fatalf("Wait: %v, a timeout must not look like a hook that cannot work", err)
	case detail.Last.Evidence == "" && detail.Cause == nil:
		s.Errorf("Wait: %v, without what was seen last", err)
	}
}
