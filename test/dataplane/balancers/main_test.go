package balancers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/safedrain/safedrain/test/dataplane"
)

// The lab that the tests of this package share, with all balancers in front of it. It is nil where nothing of it can run;
// then reason says why.
var (
	lab    *dataplane.Lab
	client *dataplane.Host
	set    *Set
	reason error
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run is TestMain with defers.
func run(m *testing.M) (code int) {
	if reason = dataplane.ForTests(); reason == nil {
		reason = Requirements(Names...)
	}
	if reason != nil {
		return m.Run()
	}
	ctx := context.Background()
	var err error
	if lab, err = dataplane.Up(ctx, dataplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if code != 0 {
			fmt.Fprintln(os.Stderr, lab.Logs())
		}
		if err := lab.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	if client, err = lab.AddHost(ctx, "client"); err == nil {
		set, err = Start(ctx, lab, client)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code = m.Run()
	if err := set.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// needLab skips a test where the lab cannot run. Programs that are missing are no reason for root to skip.
func needLab(t *testing.T) {
	t.Helper()
	if lab != nil {
		return
	}
	if errors.Is(reason, ErrMissing) {
		t.Fatal(reason)
	}
	t.Skip(reason)
}
