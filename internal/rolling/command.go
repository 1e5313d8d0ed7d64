package rolling

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// outputKept is how much of the end of the command's output is kept.
const outputKept = 16 << 10

// endWithin is the time that the command has to end itself once its time is over, before it is killed with its children.
const endWithin = 10 * time.Second

// runCommand runs the command on the drained node, if there is one. The first signal does not end it: it is let finish.
func (n *node) runCommand(ctx context.Context) error {
	if n.opts.Command == "" || n.deleted {
		return nil
	}
	if n.stop.interrupted() {
		return errInterrupted
	}
	if n.stop.err() != nil {
		return errStopped
	}
	if err := n.moveTo(ctx, Running); err != nil {
		return err
	}
	return n.timed(ctx, "run", func(ctx context.Context) error { return n.during(ctx, n.execute) })
}

func (n *node) execute(ctx context.Context) error {
	limited, cancel := ctx, context.CancelFunc(func() {})
	if n.opts.RunTimeout > 0 {
		limited, cancel = context.WithTimeout(ctx, n.opts.RunTimeout)
	}
	defer cancel()
	out := &tail{limit: outputKept}
	cmd := shell(limited, n.opts.Command)
	cmd.Env = append(n.Environ[:len(n.Environ):len(n.Environ)], "NODE="+n.name)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = endWithin
	started := n.Clock.Now()
	err := runGroup(cmd)
	n.command = &CommandReport{ExitCode: -1, Seconds: n.Clock.Since(started).Seconds()}
	if cmd.ProcessState != nil {
		n.command.ExitCode = cmd.ProcessState.ExitCode()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w while the command ran", errInterrupted)
	}
	if err == nil {
		return nil
	}
	n.command.TimedOut = limited.Err() != nil
	why := err.Error()
	var exited *exec.ExitError
	switch {
	case n.command.TimedOut:
		why = fmt.Sprintf("ended after %s (--run-timeout)", n.opts.RunTimeout)
	case errors.As(err, &exited) && n.command.ExitCode > 0:
		why = fmt.Sprintf("exit code %d", n.command.ExitCode)
	}
	n.command.Output = out.String()
	n.emit(CommandFailed{Node: n.name, Why: why, Output: n.command.Output})
	return &CommandError{Node: n.name, Why: why, TimedOut: n.command.TimedOut}
}

// tail keeps the end of what is written to it. Writes come from one goroutine.
type tail struct {
	kept  []byte
	limit int
	cut   bool
}

// Write keeps the end.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
		t.cut = true
	}
	return len(p), nil
}

// String is what was kept, from the beginning of a line on where the rest was cut.
func (t *tail) String() string {
	kept := t.kept
	if t.cut {
		if _, rest, found := bytes.Cut(kept, []byte("\n")); found {
			kept = rest
		}
		return "...\n" + string(kept)
	}
	return string(kept)
}
