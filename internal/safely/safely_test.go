package safely

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
)

var errEnd = errors.New("the end")

// A panic is an error that says where, and what runs all the time runs again after one.
func TestRun(t *testing.T) {
	var fault *Panic
	if err := Call(func() error { panic("a fault") }); !errors.As(err, &fault) || !strings.Contains(err.Error(), "safely_test.go") {
		t.Errorf("%v", err)
	}
	var log strings.Builder
	Do("it", slog.New(slog.NewTextHandler(&log, nil)), func() { panic("a fault") })
	if !strings.Contains(log.String(), "a fault") {
		t.Errorf("logged %q", log.String())
	}
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		err := Run(t.Context(), "it", slog.New(slog.DiscardHandler), func(context.Context) error {
			if runs++; runs < 3 {
				panic("a fault")
			}
			return errEnd
		})
		if runs != 3 || !errors.Is(err, errEnd) {
			t.Errorf("%d runs: %v", runs, err)
		}
	})
}
