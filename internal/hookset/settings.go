package hookset

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Settings are what the operator configures by flags and by a file, checked: see [ReadSettings]. The zero value is nothing.
type Settings struct {
	types   map[string]string          // by name: the type of a hook that has a name of its own
	options map[string]lbhooks.Options // by the name of a hook
	rules   []rule
}

// Flags are the settings as they were typed.
type Flags struct {
	Options []string // --hook-option, "name.key=value"
	Config  string   // --config, a file of kind HookConfig; "" for none
}

// ReadSettings reads and checks what the operator configures; an option of a flag wins over the file's. Every error is a
// mistake in what was given.
func ReadSettings(f Flags) (Settings, error) {
	s := Settings{types: map[string]string{}, options: map[string]lbhooks.Options{}}
	values := map[string]map[string]string{}
	if f.Config != "" {
		file, err := readConfig(f.Config)
		if err != nil {
			return Settings{}, fmt.Errorf("config: %w", err)
		}
		if err := s.file(file, values); err != nil {
			return Settings{}, fmt.Errorf("config: %s: %w", f.Config, err)
		}
	}
	typed, err := ParseOptions(f.Options)
	if err != nil {
		return Settings{}, err
	}
	for name, options := range typed {
		if values[name] == nil {
			values[name] = map[string]string{}
		}
		maps.Copy(values[name], options)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		checked, err := s.check(name, values[name])
		if err != nil {
			return Settings{}, err
		}
		s.options[name] = checked
	}
	return s, nil
}

// file takes over what a file says, and collects the values of its options by hook.
func (s *Settings) file(c *configFile, values map[string]map[string]string) error {
	var wrong []error
	for i := range c.Hooks {
		h := &c.Hooks[i]
		if _, twice := values[h.Name]; twice {
			wrong = append(wrong, fmt.Errorf("line %d: hook %q is there twice", h.line, h.Name))
			continue
		}
		if err := s.hook(h); err != nil {
			wrong = append(wrong, fmt.Errorf("line %d: %w", h.line, err))
			continue
		}
		given := make(map[string]string, len(h.Options))
		for key, value := range h.Options {
			given[key] = string(value)
		}
		values[h.Name] = given
		if _, err := s.check(h.Name, given); err != nil {
			wrong = append(wrong, fmt.Errorf("line %d: %w", h.line, err))
		}
	}
	for i := range c.Rules {
		r, err := s.rule(&c.Rules[i])
		if err != nil {
			wrong = append(wrong, fmt.Errorf("line %d: rule %d: %w", c.Rules[i].line, i+1, err))
			continue
		}
		r.reason = fmt.Sprintf("config rule %d", i+1)
		s.rules = append(s.rules, r)
	}
	return joinLines(wrong)
}

// joinLines puts several mistakes on one line.
func joinLines(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	var texts []string
	for _, err := range errs {
		texts = append(texts, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return errors.New(strings.Join(texts, "; "))
}

// hook takes over the name of a hook in the file: that of a type itself, or one of its own.
func (s *Settings) hook(h *configHook) error {
	_, isType := constructors[h.Name]
	switch {
	case h.Name == "":
		return errors.New("a hook without a name")
	case isType && h.Type != "" && h.Type != h.Name:
		return fmt.Errorf("hook %q: that name is a type's own: choose another name for a hook of type %q", h.Name, h.Type)
	case isType:
		return nil
	case h.Name == noHook || len(validation.IsDNS1123Label(h.Name)) > 0:
		return fmt.Errorf("hook %q: write the name in lower case letters, digits and dashes, and not %q", h.Name, noHook)
	case h.Type == "":
		return fmt.Errorf("hook %q: no type has that name; give it a type: %s", h.Name, strings.Join(named, " or "))
	case !slices.Contains(named, h.Type):
		return fmt.Errorf("hook %q: only hooks of type %s have names of their own, not %q", h.Name, strings.Join(named, " or "), h.Type)
	}
	s.types[h.Name] = h.Type
	return nil
}

// check checks the options of one hook against what its type knows.
func (s *Settings) check(name string, values map[string]string) (lbhooks.Options, error) {
	typ := name
	if t, ok := s.types[name]; ok {
		typ = t
	}
	if _, ok := constructors[typ]; !ok {
		return lbhooks.Options{}, fmt.Errorf("hook options of %q: %s", name, s.unknown())
	}
	checked, err := lbhooks.NewOptions(knownOptions[typ], values)
	if err != nil {
		return lbhooks.Options{}, fmt.Errorf("hook %s: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return checked, nil
}

// names lists every hook there is with these settings, sorted.
func (s *Settings) names() []string {
	names := slices.Collect(maps.Keys(constructors))
	return slices.Sorted(slices.Values(slices.AppendSeq(names, maps.Keys(s.types))))
}

func (s *Settings) known(hook string) bool {
	return hook == noHook || slices.Contains(s.names(), hook)
}

// unknown says that there is no such hook, and which there are.
func (s *Settings) unknown() string {
	return "no hook of that name; known: " + strings.Join(s.names(), ", ")
}
