// Package execcmd is the hook exec: a command of the operator that works a balancer which nothing else knows.
//
// The command is configured by whoever runs safedrain. A Service only chooses among the commands that are configured, so
// that the right to edit a Service is not the right to run programs where safedrain runs.
package execcmd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// Name of the hook; further ones are configured under names of their own.
const Name = "exec"

// Names of the options.
const (
	optionCommand = "command"
	optionTimeout = "timeout"
	optionSettle  = "settle"
)

// defaultTimeout is how long one call of the command may take.
const defaultTimeout = lbhooks.DefaultCall

// Options are those that the hook knows.
func Options() []lbhooks.Option {
	return []lbhooks.Option{
		{Name: optionCommand, Kind: lbhooks.OptionList, Check: checkCommand, Usage: `the program, by its absolute path, or a JSON array of it and its arguments`},
		{Name: optionTimeout, Kind: lbhooks.OptionDuration, Check: notZero, Usage: "how long one call may take (default 10s)"},
		{Name: optionSettle, Kind: lbhooks.OptionDuration, Usage: "time to wait after a proof (default 0s)"},
	}
}

// checkCommand refuses what no call could start; that the program is there and may be run is seen at the call.
func checkCommand(value string) error {
	set, err := lbhooks.NewOptions([]lbhooks.Option{{Name: optionCommand, Kind: lbhooks.OptionList}}, map[string]string{optionCommand: value})
	if err != nil {
		return err
	}
	words := set.List(optionCommand)
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		return errors.New("the program is not an absolute path")
	}
	return nil
}

func notZero(value string) error {
	if d, err := time.ParseDuration(value); err == nil && d == 0 {
		return errors.New("must be longer than 0s")
	}
	return nil
}

// Hook is one configured command.
type Hook struct {
	name    string
	command []string // empty: not configured
	timeout time.Duration
	settle  time.Duration
	offline bool
	environ func() []string
}

var (
	_ lbhooks.Hook         = (*Hook)(nil)
	_ lbhooks.Assertable   = (*Hook)(nil)
	_ lbhooks.Configurable = (*Hook)(nil)
)

// New returns the hook under a name. Offline it is taken at its word whether or not it is configured.
func New(name string, options lbhooks.Options, offline bool) *Hook {
	return &Hook{
		name: name, command: options.List(optionCommand), timeout: options.Duration(optionTimeout, defaultTimeout),
		settle: options.Duration(optionSettle, 0), offline: offline, environ: os.Environ,
	}
}

// Describe names the hook. It reads nothing of the cluster.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: h.name, Witness: "command", Settle: h.settle}
}

// Configured says whether there is a command.
func (h *Hook) Configured() error {
	if len(h.command) > 0 {
		return nil
	}
	return lbhooks.Unavailable(h.name, "no command is configured here: give --hook-option "+h.name+"."+optionCommand+"=/path/of/program, or the --config that has it", nil)
}

// Withdraw calls the command to take the node out.
func (h *Hook) Withdraw(ctx context.Context, t lbhooks.Target) error {
	return h.act(ctx, protocol.Withdraw, t)
}

// Restore calls the command to put the node back.
func (h *Hook) Restore(ctx context.Context, t lbhooks.Target) error {
	return h.act(ctx, protocol.Restore, t)
}
