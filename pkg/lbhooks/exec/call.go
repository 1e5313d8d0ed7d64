package execcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// grace is the time that a command has to end itself once its time is over, before it is killed with its children.
const grace = time.Second

// tail keeps the first bytes of a stream, up to a limit, and reads on so that nobody blocks.
type tail struct {
	kept  bytes.Buffer
	limit int
	cut   bool
}

// Write keeps what fits.
func (b *tail) Write(p []byte) (int, error) {
	fits := min(len(p), b.limit-b.kept.Len())
	b.kept.Write(p[:fits])
	b.cut = b.cut || fits < len(p)
	return len(p), nil
}

func (b *tail) text() string { return b.kept.String() }

// output is what a call of the command left.
type output struct {
	code           int
	stdout, stderr tail
}

// call runs the command once, with the request in its environment and on its stdin. The error is that of a command that
// could not be started or did not end in time.
func (h *Hook) call(ctx context.Context, action protocol.Action, t lbhooks.Target) (*output, error) {
	if err := h.Configured(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %s node %q for %s: %w", h.name, action, t.Node.Name, serviceOf(t), context.Cause(ctx))
	}
	request := protocol.NewRequest(h.name, action, t)
	stdin, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("%s: write the request: %w", h.name, err)
	}
	limited, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	out := &output{stdout: tail{limit: protocol.MaxAnswer}, stderr: tail{limit: protocol.MaxAnswer}}
	args := append(h.command[1:len(h.command):len(h.command)], string(action))
	cmd := exec.CommandContext(limited, h.command[0], args...) //nolint:gosec // the operator's own command
	cmd.Env = append(withoutOurs(h.environ()), environment(request, h.timeout)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(stdin, '\n')), &out.stdout, &out.stderr
	err = runGroup(cmd)
	var exited *exec.ExitError
	switch {
	case limited.Err() != nil:
		return nil, h.late(ctx, action, t, out)
	case err == nil:
	case errors.As(err, &exited) && exited.ExitCode() >= 0:
		out.code = exited.ExitCode()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, exec.ErrNotFound):
		return nil, lbhooks.Unavailable(h.name, "the command cannot be started", err)
	default:
		return nil, fmt.Errorf("%s: %s node %q for %s: %w", h.name, action, t.Node.Name, serviceOf(t), err)
	}
	return out, nil
}

// late says that the command did not end in time, and what it said last.
func (h *Hook) late(ctx context.Context, action protocol.Action, t lbhooks.Target, out *output) error {
	why := error(context.DeadlineExceeded)
	if ctx.Err() != nil {
		why = context.Cause(ctx)
	}
	text := fmt.Sprintf("%s: %s node %q for %s was ended", h.name, action, t.Node.Name, serviceOf(t))
	if ctx.Err() == nil {
		text += " after " + h.timeout.String()
	}
	if words := protocol.LastLine(out.stderr.text()); words != "" {
		text += " (it said: " + words + ")"
	}
	return fmt.Errorf("%s: %w", text, why)
}

// withoutOurs drops variables of our prefix, so that what the command reads is what this call says.
func withoutOurs(environ []string) []string {
	out := make([]string, 0, len(environ))
	for _, v := range environ {
		if !strings.HasPrefix(v, prefix) {
			out = append(out, v)
		}
	}
	return out
}
