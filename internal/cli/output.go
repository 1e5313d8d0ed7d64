package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// format is the value of -o.
type format string

const (
	formatText format = ""
	formatWide format = "wide"
	formatJSON format = "json"
	formatYAML format = "yaml"
	formatName format = "name"
)

// String, Set and Type make format a flag value.
func (f *format) String() string { return string(*f) }

// Type names the value in the usage.
func (f *format) Type() string { return "string" }

// Set checks and takes a value.
func (f *format) Set(s string) error {
	switch format(s) {
	case formatWide, formatJSON, formatYAML, formatName:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("unknown output format %q: json, yaml, wide or name", s)
}

// document reports whether stdout carries exactly one document.
func (f format) document() bool { return f == formatJSON || f == formatYAML || f == formatName }

// writeDocument writes one document: v as JSON or YAML, or the names, one a line.
func writeDocument(w io.Writer, f format, v any, names []string) error {
	var out []byte
	var err error
	switch f {
	case formatJSON:
		if out, err = json.MarshalIndent(v, "", "  "); err == nil {
			out = append(out, '\n')
		}
	case formatYAML:
		out, err = yaml.Marshal(v)
	default:
		for _, name := range names {
			out = append(out, oneLine(name)+"\n"...)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the result as %s: %w", f, err)
	}
	_, err = w.Write(out)
	return err
}

// slashed returns names of nodes as -o name prints them: node/node-3.
func slashed(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, "node/"+n)
	}
	return out
}

// quoted quotes an argument for a POSIX shell where it needs that.
func quoted(arg string) string {
	if arg != "" && strings.Trim(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") == "" {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
