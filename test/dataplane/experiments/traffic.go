package experiments

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/load"
)

const (
	warmUp       = time.Second // is not looked at
	steadyTime   = 2           // seconds without a failure that have to come before an action
	steadyWithin = 60 * time.Second
	longestRun   = 10 * time.Minute
	// maxLag is how late the generator may send in a run that counts: beyond it the machine is measured, not a balancer.
	maxLag = 400 * time.Millisecond
)

// errDiscard is the end of a run that measured nothing and has to be made again.
var errDiscard = errors.New("run discarded")

// traffic is load that is on its way. Its lines are collected as they come.
type traffic struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	starts time.Time

	mu       sync.Mutex
	seconds  map[string][]*load.Second
	failures map[string][]*load.Failure
	ended    map[string]bool // by target
	errs     []error
}

// startTraffic sends load to targets from the hosts that they are grouped by.
func startTraffic(ctx context.Context, byHost map[*dataplane.Host][]load.Target) (*traffic, error) {
	program, err := controlplane.LocalProgram(ctx, "dataplane")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{
		cancel: cancel, starts: time.Now(), seconds: map[string][]*load.Second{},
		failures: map[string][]*load.Failure{}, ended: map[string]bool{},
	}
	for host, targets := range byHost {
		args, err := load.Args(load.Config{Targets: targets, Duration: longestRun})
		if err == nil {
			err = t.startOn(ctx, host, program, args)
		}
		if err != nil {
			return nil, errors.Join(err, t.stop())
		}
	}
	return t, nil
}

func (t *traffic) startOn(ctx context.Context, host *dataplane.Host, program string, args []string) error {
	cmd := host.Command(ctx, program, append([]string{"load"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it waits for its requests and sums up
	cmd.WaitDelay = 10 * time.Second
	var messages strings.Builder
	cmd.Stderr = &messages
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the load on %s: %w", host.Name, err)
	}
	t.done.Go(func() {
		err := load.Decode(out, t.take)
		_, drained := io.Copy(io.Discard, out)
		err = errors.Join(err, drained)
		if exit := cmd.Wait(); exit != nil && ctx.Err() == nil {
			err = errors.Join(err, exit)
		}
		if err != nil {
			t.fail(fmt.Errorf("load on %s: %w: %s", host.Name, err, messages.String()))
		}
	})
	return nil
}

func (t *traffic) take(l load.Line) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case l.Second != nil:
		t.seconds[l.Second.Target] = append(t.seconds[l.Second.Target], l.Second)
	case l.Failure != nil:
		t.failures[l.Failure.Target] = append(t.failures[l.Failure.Target], l.Failure)
	case l.Summary != nil:
		t.ended[l.Summary.Target.Name] = true
	}
	return nil
}

func (t *traffic) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, err)
}

// stop ends the load and returns when every request is accounted for.
func (t *traffic) stop() error {
	t.cancel()
	t.done.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.seconds {
		if !t.ended[name] {
			t.errs = append(t.errs, fmt.Errorf("the load on %q ended without its summary", name))
		}
	}
	return errors.Join(t.errs...)
}

// steady waits until the last seconds of every target are without a failure.
func (t *traffic) steady(ctx context.Context, targets []string) error {
	what := fmt.Sprintf("%d seconds without a failure", steadyTime)
	err := controlplane.Poll(ctx, steadyWithin, what, func(context.Context) (bool, string, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err := errors.Join(t.errs...); err != nil {
			return false, "", err
		}
		for _, name := range targets {
			if state := t.unsteady(name); state != "" {
				return false, name + ": " + state, nil
			}
		}
		return true, "", nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errDiscard, err)
	}
	return nil
}

// unsteady says why a target is not steady yet, "" when it is.
func (t *traffic) unsteady(name string) string {
	all := t.seconds[name]
	if len(all) < steadyTime+int(warmUp/time.Second) {
		return "no answers yet"
	}
	from := all[len(all)-steadyTime].Start
	failed := slices.IndexFunc(t.failures[name], func(f *load.Failure) bool { return !f.At.Before(from) })
	if failed >= 0 {
		f := t.failures[name][failed]
		return fmt.Sprintf("%s at %s: %s", f.Class, f.At.Format(time.TimeOnly), f.Error)
	}
	for _, s := range all[len(all)-steadyTime:] {
		if s.New.OK+s.Kept.OK == 0 {
			return "nothing answered"
		}
	}
	return ""
}

// observed is what one target's load saw, once it has ended.
func (t *traffic) observed(target string) ([]*load.Second, []*load.Failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seconds[target], t.failures[target]
}
