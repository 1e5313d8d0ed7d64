package cli

import (
	"github.com/safedrain/safedrain/internal/hookset"
)

// policy prints the least rights that one hook needs outside the cluster, which is not asked for that.
func (r *hooksRun) policy(args []string, chosen choice) error {
	switch {
	case len(args) == 0:
		return usagef("--iam: name the hook, as in %s hooks aws --iam", r.app.name)
	case r.fix, r.source.offline(), r.output != "":
		return usagef("--iam prints a file as its provider reads it: leave out --fix, --output, --file and --example")
	}
	text, err := hookset.Policy(args[0], chosen.settings)
	if err != nil {
		return &usageError{err}
	}
	_, err = r.app.streams.Out.Write(text)
	return err
}
