package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// typed is what was typed, so that a next command can repeat it.
type typed struct {
	name  string // how the program was called: "safedrain", "kubectl safedrain"
	flags []typedFlag
}

// typedFlag is one flag with its values; none for a flag that is set by its name alone.
type typedFlag struct {
	name   string
	values []string
	list   bool // the values are written as one, with commas
}

// notRepeated are flags that make no sense in a command that acts on the cluster, or whose value is a secret.
var notRepeated = []string{"file", "example", "output", "each", "dry-run", "help", "fail-on", "v"}

// whereFlags say which cluster and how its balancers are worked: a command that undoes another needs them too.
var whereFlags = []string{"context", "kubeconfig", "cluster", "user", "server", "config", "hook-option"}

// secrets are repeated without their value.
var secrets = []string{"token", "password"}

// typedFlags reads the flags that were set.
func typedFlags(name string, fs *pflag.FlagSet) typed {
	t := typed{name: name}
	fs.Visit(func(f *pflag.Flag) {
		if slices.Contains(notRepeated, f.Name) {
			return
		}
		tf := typedFlag{name: f.Name}
		switch list, isList := f.Value.(pflag.SliceValue); {
		case slices.Contains(secrets, f.Name):
			tf.values = []string{"..."}
		case isList:
			tf.values, tf.list = list.GetSlice(), f.Value.Type() != "stringArray"
		case f.Value.Type() == "bool" && f.Value.String() == "true":
		case f.Value.Type() == "duration":
			tf.values = []string{shortDuration(f.Value.String())}
		default:
			tf.values = []string{f.Value.String()}
		}
		t.flags = append(t.flags, tf)
	})
	return t
}

// shortDuration drops the units that are zero at the end of a duration: 20m0s is 20m.
func shortDuration(s string) string {
	for _, end := range []string{"0s", "0m"} {
		if rest := strings.TrimSuffix(s, end); rest != "" && strings.ContainsAny(rest[len(rest)-1:], "hm") {
			s = rest
		}
	}
	return s
}

// with returns the flags with more of them, written as findings do: "--name" or "--name=value".
func (t typed) with(more ...string) typed {
	out := typed{name: t.name, flags: slices.Clone(t.flags)}
	for _, flag := range more {
		name, value, hasValue := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		i := slices.IndexFunc(out.flags, func(f typedFlag) bool { return f.name == name })
		if i < 0 {
			out.flags = append(out.flags, typedFlag{name: name, list: hasValue})
			i = len(out.flags) - 1
		}
		f := &out.flags[i]
		if hasValue && !slices.Contains(f.values, value) {
			f.values = append(slices.Clone(f.values), value)
		}
	}
	return out
}

// longer returns the flags with a duration that is at least d, and twice what was typed.
func (t typed) longer(name string, d time.Duration) typed {
	out := typed{name: t.name}
	for _, f := range t.flags {
		if f.name != name {
			out.flags = append(out.flags, f)
			continue
		}
		if was, err := time.ParseDuration(strings.Join(f.values, "")); err == nil {
			d = max(d, 2*was)
		}
	}
	out.flags = append(out.flags, typedFlag{name: name, values: []string{shortDuration(d.String())}})
	return out
}

// only keeps the flags of these names: a command that lacks the others does not take them.
func (t typed) only(names ...string) typed {
	out := typed{name: t.name}
	for _, f := range t.flags {
		if slices.Contains(names, f.name) {
			out.flags = append(out.flags, f)
		}
	}
	return out
}

// selectorFlag chooses what a command that names nothing acts on; beside names it is refused.
const selectorFlag = "selector"

// command writes "safedrain [verb] args flags" for a shell.
func (t typed) command(verb string, args ...string) string {
	if len(args) > 0 {
		t.flags = slices.DeleteFunc(slices.Clone(t.flags), func(f typedFlag) bool { return f.name == selectorFlag })
	}
	words := []string{t.name}
	if verb != "" {
		words = append(words, verb)
	}
	for _, a := range args {
		words = append(words, quoted(a))
	}
	return strings.Join(append(words, t.words()...), " ")
}

// words writes the flags for a shell.
func (t typed) words() []string {
	var out []string
	for _, f := range t.flags {
		word := "--" + f.name
		switch {
		case f.list:
			out = append(out, word+"="+quoted(strings.Join(f.values, ",")))
		case len(f.values) == 0:
			out = append(out, word)
		}
		for _, v := range f.values {
			if !f.list {
				out = append(out, word+"="+quoted(v))
			}
		}
	}
	return out
}

// values writes each value of each flag by itself, as findings do.
func (t typed) values() []string {
	var out []string
	for _, f := range t.flags {
		if len(f.values) == 0 {
			out = append(out, "--"+f.name)
		}
		for _, v := range f.values {
			out = append(out, "--"+f.name+"="+v)
		}
	}
	return out
}

// acceptUnproven is the flag whose values may be globs.
const acceptUnproven = "--accept-unproven="

// globbed puts a glob in place of more than a few Services of one namespace that are to be accepted.
func globbed(flags []string) []string {
	n := map[string]int{}
	for _, f := range flags {
		if service, ok := strings.CutPrefix(f, acceptUnproven); ok {
			ns, _, _ := strings.Cut(service, "/")
			n[ns]++
		}
	}
	var out []string
	for _, f := range flags {
		if service, ok := strings.CutPrefix(f, acceptUnproven); ok {
			if ns, _, _ := strings.Cut(service, "/"); n[ns] > most {
				f = acceptUnproven + ns + "/*"
			}
		}
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}
