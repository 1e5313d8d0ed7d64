package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/safedrain/safedrain/test/controlplane"
)

// Sweep removes what is left of a lab without its process: a lasting one, or one whose process was killed. An empty name
// means every lab whose process was killed, and spares lasting ones. A name that is not known is an error.
func Sweep(ctx context.Context, name string) error {
	if err := Requirements(); err != nil {
		return err
	}
	if _, err := os.Stat(registry); errors.Is(err, fs.ErrNotExist) && name == "" {
		return nil // there is no lab at all
	}
	return locked(ctx, sweeping, func() error { return sweepNamed(ctx, name) })
}

func sweepNamed(ctx context.Context, name string) error {
	all, err := records()
	if err != nil {
		return err
	}
	var errs []error
	found := false
	for _, r := range all {
		switch {
		case name == "" && (r.Lasting || r.Owner.alive()):
		case name == "":
			errs = append(errs, sweep(ctx, r))
		case r.Name != name:
		case r.Owner.alive() && r.Owner.PID != os.Getpid():
			return fmt.Errorf("lab %q belongs to process %d, which still runs: end that one", name, r.Owner.PID)
		default:
			found = true
			errs = append(errs, sweep(ctx, r))
		}
	}
	if name != "" && !found {
		return fmt.Errorf("no lab named %q: %s", name, known(all))
	}
	return errors.Join(errs...)
}

// known says which labs there are.
func known(all []*record) string {
	if len(all) == 0 {
		return "there is none"
	}
	text := "there are"
	for _, r := range all {
		text += " " + r.Name
	}
	return text
}

// Lasting lists the names of the labs that outlived the process that made them on purpose, sorted.
func Lasting() ([]string, error) {
	all, err := records()
	var names []string
	for _, r := range all {
		if r.Lasting {
			names = append(names, r.Name)
		}
	}
	return names, err
}

// sweep ends a lab by what is written down of it, and forgets it when nothing is left.
func sweep(ctx context.Context, r *record) error {
	if err := endProcesses(ctx, r.plan().netnsPrefix(), r.Processes); err != nil {
		return err
	}
	if err := removeNetwork(ctx, r.plan()); err != nil {
		return err
	}
	if os.Getenv(controlplane.EnvKeep) == "" {
		if err := os.RemoveAll(r.Dir); err != nil {
			return err
		}
	}
	return unregister(ctx, r)
}
