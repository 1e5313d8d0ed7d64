package cli

import (
	"github.com/spf13/pflag"

	"github.com/safedrain/safedrain/internal/hookset"
)

// HookFlags are the settings of hooks as they were typed.
type HookFlags struct {
	Options []string
	Config  string
}

func (f *HookFlags) bind(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.Options, "hook-option", nil, "An option of a hook, name.key=value; wins over --config. Repeatable.")
	fs.StringVar(&f.Config, "config", "", "File of kind HookConfig: hooks with their options, and rules that say which Services they front.")
}

// choice is what a user says of hooks for one command: which front what, and their settings.
type choice struct {
	override map[string]string // as in hookset.Deps
	settings hookset.Settings
}

// choose reads the flags, and the values of --hook where a command has that one.
func (f *HookFlags) choose(hooks []string) (choice, error) {
	settings, err := hookset.ReadSettings(hookset.Flags{Options: f.Options, Config: f.Config})
	if err != nil {
		return choice{}, &usageError{err}
	}
	override, err := hookset.ParseOverrides(hooks, settings)
	if err != nil {
		return choice{}, &usageError{err}
	}
	return choice{override, settings}, nil
}
