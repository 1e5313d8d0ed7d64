// Command readme writes the generated parts of README.md: the table of flags, and the output of the example commands.
// With -check it changes nothing and fails when the file is not up to date.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/safedrain/safedrain/internal/cli"
)

func main() {
	check := flag.Bool("check", false, "change nothing, fail when the file is not up to date")
	file := flag.String("file", "README.md", "the file")
	flag.Parse()
	if err := run(*file, *check); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(file string, check bool) error {
	old, err := os.ReadFile(file) //nolint:gosec // the file is named by who runs this
	if err != nil {
		return fmt.Errorf("read the README: %w", err)
	}
	text, err := generate(string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	switch {
	case text == string(old):
		return nil
	case check:
		return fmt.Errorf("%s is not up to date: go run ./internal/cmd/readme", file)
	}
	return os.WriteFile(file, []byte(text), 0o644) //nolint:gosec // a README is for everybody
}

// examples are the commands whose output stands in the README, by the name in the marker.
var examples = map[string]string{
	"audit":    "safedrain audit --example",
	"refused":  "safedrain plan --example node-1 --ignore-daemonsets",
	"after":    "safedrain audit --example=after",
	"unproven": "safedrain plan --example=after node-1 --ignore-daemonsets",
	"good":     "safedrain plan --example=metallb node-1 --ignore-daemonsets",
	"each":     "safedrain plan --example --each --ignore-daemonsets",
	"hooks":    "safedrain hooks --example=metallb",
}

// errMarkers says that a file has nothing to generate.
var errMarkers = errors.New("no marker <!-- flags --> or <!-- example:NAME -->")

// generate fills what stands between the markers: <!-- flags --> ... <!-- /flags --> and <!-- example:NAME --> ...
// <!-- /example -->.
func generate(text string) (string, error) {
	var out strings.Builder
	found := false
	for {
		before, rest, ok := strings.Cut(text, "<!-- ")
		out.WriteString(before)
		if !ok {
			break
		}
		name, rest, ok := strings.Cut(rest, " -->")
		if !ok {
			return "", fmt.Errorf("marker %.40q is not closed", rest)
		}
		out.WriteString("<!-- " + name + " -->")
		text = rest
		content, end, err := contentOf(name)
		if err != nil {
			return "", err
		}
		if end == "" {
			continue
		}
		_, after, ok := strings.Cut(rest, "<!-- "+end+" -->")
		if !ok {
			return "", fmt.Errorf("marker %q has no <!-- %s -->", name, end)
		}
		found = true
		out.WriteString("\n" + content + "<!-- " + end + " -->")
		text = after
	}
	if !found {
		return "", errMarkers
	}
	return out.String(), nil
}

// contentOf makes what stands after a marker, and names the marker that ends it; "" for a comment that is none.
func contentOf(marker string) (content, end string, err error) {
	if marker == "flags" {
		return flagTables(), "/flags", nil
	}
	name, ok := strings.CutPrefix(marker, "example:")
	if !ok {
		return "", "", nil
	}
	command, ok := examples[name]
	if !ok {
		return "", "", fmt.Errorf("example %q is not known", name)
	}
	content, err = output(command)
	return content, "/example", err
}

// output runs an example in this process and shows it as a terminal would.
func output(command string) (string, error) {
	var out, errOut bytes.Buffer
	code := cli.Run(context.Background(), cli.Process{
		Args:    strings.Fields(command),
		Streams: cli.Streams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut},
	})
	if code != 0 && code != 3 {
		return "", fmt.Errorf("%s: exit code %d: %s", command, code, errOut.String())
	}
	return fmt.Sprintf("```console\n$ %s\n%s$ echo $?\n%d\n```\n", command, out.String(), code), nil
}

func discard() cli.Streams {
	return cli.Streams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}
}
