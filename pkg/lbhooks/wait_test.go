package lbhooks_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// scripted answers one observation after the other; the last one for ever.
type scripted struct {
	lbhooks.Hook

	answers []any // Proof, error, or time.Duration: a call that hangs that long
	calls   []time.Duration
	began   time.Time
}

func (s *scripted) Describe() lbhooks.Description { return lbhooks.Description{Name: "scripted"} }

func (s *scripted) Prove(ctx context.Context, _ lbhooks.Target) (lbhooks.Proof, error) {
	s.calls = append(s.calls, time.Since(s.began))
	answer := s.answers[min(len(s.calls), len(s.answers))-1]
	switch a := answer.(type) {
	case error:
		return lbhooks.Proof{}, a
	case time.Duration:
		select {
		case <-ctx.Done():
			return lbhooks.Proof{}, ctx.Err()
		case <-time.After(a):
			return out, nil
		}
	}
	return answer.(lbhooks.Proof), nil
}

// paced has a pace of its own.
type paced struct{ scripted }

func (p *paced) Pace(lbhooks.Target) (time.Duration, int) { return 10 * time.Second, 3 }

var (
	in           = lbhooks.Proof{Evidence: "still in"}
	out          = lbhooks.Proof{Out: true, Evidence: "left", By: "n2"}
	errTransient = errors.New("connection reset")
	gone         = lbhooks.Unavailable("scripted", "no credentials", nil)
)

func waitTarget() lbhooks.Target {
	return lbhooks.Target{
		Service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "gw"}},
		Node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
	}
}

func TestWait(t *testing.T) {
	for name, test := range map[string]struct {
		answers []any
		opts    lbhooks.WaitOptions
		is      []error // errors.Is
		isNot   []error
		calls   int
		within  time.Duration // no longer than that
		pending int
		says    string // in the error
	}{
		"out at once":                       {answers: []any{out}, calls: 1},
		"out later":                         {answers: []any{in, in, out}, calls: 3, pending: 2, within: 225 * time.Millisecond},
		"never out":                         {answers: []any{in}, opts: lbhooks.WaitOptions{Timeout: 5 * time.Second}, is: []error{lbhooks.ErrNotProven}, isNot: []error{lbhooks.ErrUnavailable, context.DeadlineExceeded}, within: 5 * time.Second, says: `scripted: node "n1" not proven out of rotation of e/gw after 5s: still in`},
		"failures that pass":                {answers: []any{errTransient, errTransient, out}, calls: 3, pending: 2},
		"failing for ever":                  {answers: []any{in, errTransient}, opts: lbhooks.WaitOptions{Timeout: 2 * time.Second}, is: []error{lbhooks.ErrNotProven, errTransient}, within: 2 * time.Second, says: "after 2s: still in; last try failed: connection reset"},
		"cannot work":                       {answers: []any{gone}, calls: 1, is: []error{lbhooks.ErrUnavailable}, isNot: []error{lbhooks.ErrNotProven}},
		"loses its credentials":             {answers: []any{in, in, gone}, calls: 3, pending: 2, is: []error{lbhooks.ErrUnavailable}},
		"stable":                            {answers: []any{in, out, out, out}, opts: lbhooks.WaitOptions{Stable: 3}, calls: 4, pending: 3},
		"three in a row after two misses":   {answers: []any{in, in, out, out, out}, opts: lbhooks.WaitOptions{Stable: 3}, calls: 5, pending: 4},
		"flaps, then stays":                 {answers: []any{out, in, out, errTransient, out, out}, opts: lbhooks.WaitOptions{Stable: 2}, calls: 6, pending: 5},
		"a hanging call ends by itself":     {answers: []any{time.Hour, out}, opts: lbhooks.WaitOptions{Call: time.Second}, calls: 2, pending: 1, within: 1300 * time.Millisecond},
		"a hanging call ends at timeout":    {answers: []any{time.Hour}, opts: lbhooks.WaitOptions{Timeout: 3 * time.Second}, calls: 1, pending: 1, is: []error{lbhooks.ErrNotProven, context.DeadlineExceeded}, within: 3 * time.Second},
		"the last try is at the timeout":    {answers: []any{in, in, out}, opts: lbhooks.WaitOptions{Timeout: time.Second, Poll: 600 * time.Millisecond, MaxPoll: time.Minute}, calls: 3, within: time.Second, pending: 2},
		"proof within a second of its fact": {answers: append(repeat(in, 40), out), opts: lbhooks.WaitOptions{Timeout: time.Minute}, calls: 41, pending: 40, within: 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hook := &scripted{answers: test.answers, began: time.Now()}
				pending := 0
				test.opts.Pending = func(lbhooks.Pending) { pending++ }
				p, err := lbhooks.Wait(t.Context(), clock.RealClock{}, hook, waitTarget(), test.opts)
				took := time.Since(hook.began)
				if len(test.is) == 0 && (err != nil || !p.Out || p.By != "n2") {
					t.Fatalf("%+v, %v", p, err)
				}
				for _, want := range test.is {
					if !errors.Is(err, want) {
						t.Errorf("%v does not match %v", err, want)
					}
				}
				for _, not := range test.isNot {
					if errors.Is(err, not) {
						t.Errorf("%v matches %v", err, not)
					}
				}
				if test.says != "" && !strings.Contains(err.Error(), test.says) {
					t.Errorf("%q does not say %q", err, test.says)
				}
				if test.calls != 0 && len(hook.calls) != test.calls {
					t.Errorf("%d observations, want %d", len(hook.calls), test.calls)
				}
				if test.pending != 0 && pending != test.pending {
					t.Errorf("%d were reported as pending, want %d", pending, test.pending)
				}
				if test.within != 0 && took > test.within {
					t.Errorf("took %s, want at most %s", took, test.within)
				}
			})
		})
	}
}

func repeat(p lbhooks.Proof, n int) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = p
	}
	return all
}

// No two observations are further apart than a second, and at first they are close to one another: a proof is noticed within
// a second of its fact, and within about a fifth of the time that it took.
func TestWaitPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := &scripted{answers: []any{in}, began: time.Now()}
		_, err := lbhooks.Wait(t.Context(), clock.RealClock{}, hook, waitTarget(), lbhooks.WaitOptions{Timeout: 30 * time.Second})
		if !errors.Is(err, lbhooks.ErrNotProven) {
			t.Fatal(err)
		}
		for i := 1; i < len(hook.calls); i++ {
			gap, before := hook.calls[i]-hook.calls[i-1], hook.calls[i-1]
			if gap > time.Second || gap > lbhooks.DefaultPoll+before/3 || (i < len(hook.calls)-1 && gap < 80*time.Millisecond) {
				t.Errorf("observation %d came %s after the one at %s", i, gap, before)
			}
		}
		if n := len(hook.calls); n < 35 || n > 60 {
			t.Errorf("%d observations in 30s", n)
		}
	})
}

// A hook with a pace of its own is asked at that pace, and for as many observations as it wants.
func TestWaitPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := &paced{scripted{answers: []any{in, out, in, out, out, out}, began: time.Now()}}
		p, err := lbhooks.Wait(t.Context(), clock.RealClock{}, hook, waitTarget(), lbhooks.WaitOptions{Timeout: 5 * time.Minute})
		if err != nil || !p.Out || len(hook.calls) != 6 {
			t.Fatalf("%+v, %v, %d observations", p, err, len(hook.calls))
		}
		if took := time.Since(hook.began); took < 40*time.Second || took > 50*time.Second {
			t.Errorf("six observations took %s, want five times 8s to 10s", took)
		}
	})
}

func TestWaitObeysItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 700*time.Millisecond, context.DeadlineExceeded)
		defer cancel()
		hook := &scripted{answers: []any{in, time.Hour}, began: time.Now()}
		p, err := lbhooks.Wait(ctx, clock.RealClock{}, hook, waitTarget(), lbhooks.WaitOptions{})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lbhooks.ErrNotProven) || !strings.Contains(err.Error(), "still in") {
			t.Errorf("%v", err)
		}
		if took := time.Since(hook.began); took != 700*time.Millisecond || p.Evidence != "still in" {
			t.Errorf("took %s, last %+v", took, p)
		}
		stop, cancelStop := context.WithCancelCause(t.Context())
		cancelStop(errStopped)
		if _, err := lbhooks.Wait(stop, clock.RealClock{}, hook, waitTarget(), lbhooks.WaitOptions{}); !errors.Is(err, errStopped) {
			t.Errorf("%v, want the cause of the cancellation", err)
		}
	})
}

var errStopped = errors.New("stopped by a signal")

func TestReadFailed(t *testing.T) {
	resource := schema.GroupResource{Group: "metallb.io", Resource: "servicel2statuses"}
	got := map[string]bool{}
	for name, err := range map[string]error{
		"forbidden":    apierrors.NewForbidden(resource, "", nil),
		"unauthorized": apierrors.NewUnauthorized("expired"),
		"not served":   apierrors.NewNotFound(resource, ""),
		"throttled":    apierrors.NewTooManyRequests("later", 1),
		"server down":  apierrors.NewServiceUnavailable("restarting"),
		"internal":     apierrors.NewInternalError(errTransient),
		"timeout":      context.DeadlineExceeded,
		"network":      errTransient,
	} {
		wrapped := lbhooks.ReadFailed("metallb-l2", "list", resource.String(), err)
		got[name] = errors.Is(wrapped, lbhooks.ErrUnavailable)
		if !strings.Contains(wrapped.Error(), "servicel2statuses.metallb.io") || strings.Contains(wrapped.Error(), "\n") {
			t.Errorf("%s: %q", name, wrapped)
		}
	}
	want := map[string]bool{"forbidden": true, "unauthorized": true, "not served": true, "throttled": false, "server down": false, "internal": false, "timeout": false, "network": false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("permanent: -want +got\n%s", diff)
	}
}
