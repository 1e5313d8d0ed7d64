package lbhooks_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// denied is how a hook says that a permission is missing.
type denied struct{}

func (*denied) Error() string { return "not allowed to look" }

func TestTryProofs(t *testing.T) {
	slow := lbhooks.Missing{What: "an answer in time", Why: "health", Optional: true}
	broken := lbhooks.Missing{What: "the answer is odd", Why: "health", Optional: true}
	tests := map[string]struct {
		answers []any
		want    []lbhooks.Missing
	}{
		"all is there":              {answers: []any{lbhooks.Proof{}}},
		"no answer":                 {answers: []any{time.Hour}, want: []lbhooks.Missing{slow}},
		"an odd one, then no other": {answers: []any{errors.New("scripted: the answer is odd"), time.Hour}, want: []lbhooks.Missing{broken, slow}},
		"the same of every target":  {answers: []any{errors.New("scripted: the answer is odd")}, want: []lbhooks.Missing{broken}},
		"a permission": {
			answers: []any{&denied{}},
			want:    []lbhooks.Missing{{What: "not allowed to look", Why: "see the role", Forbidden: true, Optional: true}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				h := &scripted{answers: tc.answers, began: time.Now()}
				got := lbhooks.TryProofs[*denied](ctx, h, make([]lbhooks.Target, 2), "health", "see the role")
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("(-want +got): %s", diff)
				}
			})
		})
	}
}

func TestTryProofsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := &scripted{answers: []any{time.Hour}, began: time.Now()}
	if got := lbhooks.TryProofs[*denied](ctx, h, make([]lbhooks.Target, 2), "health", "see the role"); got != nil {
		t.Errorf("%v is missing, although nobody waited for an answer", got)
	}
}
