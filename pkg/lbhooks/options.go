package lbhooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// OptionKind is how the value of an option is read.
type OptionKind string

// The kinds of options.
const (
	OptionText     OptionKind = "text"
	OptionBool     OptionKind = "true or false"
	OptionDuration OptionKind = "duration" // as Go writes it, "90s"; not negative
	OptionNumber   OptionKind = "number"   // a whole number, not negative
	OptionFile     OptionKind = "file"     // an absolute path of a file that is there
	OptionList     OptionKind = "list"     // a JSON array of strings, or one string alone
)

// Option is one setting of a hook that an operator may give. A hook's package lists its own.
type Option struct {
	Name  string // "deregister"
	Kind  OptionKind
	Usage string // what it does and its default, one line
	// Check refuses further values; nil takes every value of the kind.
	Check func(value string) error
}

// Options are the settings of one hook, checked. The zero value is "nothing was set".
type Options struct{ values map[string]string }

// NewOptions checks values against the options that a hook knows. The error names every mistake and what is known.
func NewOptions(known []Option, values map[string]string) (Options, error) {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		i := slices.IndexFunc(known, func(o Option) bool { return o.Name == name })
		if i < 0 {
			wrong = append(wrong, fmt.Errorf("no option %q; known: %s", name, optionNames(known)))
			continue
		}
		if err := known[i].check(values[name]); err != nil {
			wrong = append(wrong, fmt.Errorf("option %s=%q: %w", name, values[name], err))
		}
	}
	return Options{maps.Clone(values)}, errors.Join(wrong...)
}

func optionNames(known []Option) string {
	var names []string
	for _, o := range known {
		names = append(names, o.Name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (o *Option) check(value string) error {
	var err error
	switch o.Kind {
	case OptionBool:
		_, err = strconv.ParseBool(value)
	case OptionDuration:
		if d, bad := time.ParseDuration(value); bad != nil || d < 0 {
			err = errors.New("not a duration: write 90s")
		}
	case OptionNumber:
		_, err = strconv.ParseUint(value, 10, 31)
	case OptionFile:
		err = checkFile(value)
	case OptionList:
		_, err = parseList(value)
	case OptionText:
	}
	switch {
	case errors.Is(err, strconv.ErrSyntax), errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("not a %s", o.Kind)
	case err != nil:
		return err
	case o.Check != nil:
		return o.Check(value)
	}
	return nil
}

func checkFile(path string) error {
	if !filepath.IsAbs(path) {
		return errors.New("not an absolute path")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("a directory, not a file")
	}
	return nil
}

// parseList reads a JSON array of strings; anything that does not begin as one is a single string.
func parseList(value string) ([]string, error) {
	if !strings.HasPrefix(strings.TrimSpace(value), "[") {
		return []string{value}, nil
	}
	var list []string
	if err := json.Unmarshal([]byte(value), &list); err != nil {
		return nil, errors.New(`not a JSON array of strings: write ["a", "b"]`)
	}
	return list, nil
}

// Has reports whether an option was given.
func (o Options) Has(name string) bool {
	_, ok := o.values[name]
	return ok
}

// Text returns the value of an option, "" when it was not given.
func (o Options) Text(name string) string { return o.values[name] }

// Bool returns the value of an option of that kind, false when it was not given.
func (o Options) Bool(name string) bool {
	b, err := strconv.ParseBool(o.values[name])
	return err == nil && b
}

// Duration returns the value of an option of that kind, or the fallback when it was not given.
func (o Options) Duration(name string, fallback time.Duration) time.Duration {
	if d, err := time.ParseDuration(o.values[name]); err == nil {
		return d
	}
	return fallback
}

// Number returns the value of an option of that kind, or the fallback when it was not given.
func (o Options) Number(name string, fallback int) int {
	if n, err := strconv.Atoi(o.values[name]); err == nil {
		return n
	}
	return fallback
}

// List returns the value of an option of that kind, empty when it was not given.
func (o Options) List(name string) []string {
	if !o.Has(name) {
		return nil
	}
	list, err := parseList(o.values[name])
	if err != nil {
		return nil
	}
	return list
}

// Configurable is a hook that works only with options that an operator has to give.
type Configurable interface {
	Hook
	// Configured returns nil, or an error that matches [ErrUnavailable] and says which option is missing.
	Configured() error
}
