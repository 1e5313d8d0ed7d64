package hookset

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Names of the configuration's document.
const (
	configAPIVersion = "safedrain.dev/v1alpha1"
	configKind       = "HookConfig"
)

// configFile is the file of --config as it is written. docs/hooks/config.md is its reference.
type configFile struct {
	APIVersion string       `yaml:"apiVersion"`
	Kind       string       `yaml:"kind"`
	Hooks      []configHook `yaml:"hooks"`
	Rules      []configRule `yaml:"rules"`
}

// configHook gives options to a hook, or makes a further one of a type under a name of its own.
type configHook struct {
	Name    string                 `yaml:"name"`
	Type    string                 `yaml:"type"` // "" is the name
	Options map[string]configValue `yaml:"options"`

	line int
}

// configRule says for the Services that it selects which hook fronts them, and its times. What is empty selects all.
type configRule struct {
	Namespaces        []string `yaml:"namespaces"` // globs
	Names             []string `yaml:"names"`      // globs
	Selector          string   `yaml:"selector"`   // of the Service's labels
	LoadBalancerClass string   `yaml:"loadBalancerClass"`

	Hook    string `yaml:"hook"`
	Settle  string `yaml:"settle"`
	Timeout string `yaml:"timeout"`

	line int
}

// configValue is the value of an option: a scalar as it is written, or a list of scalars as a JSON array.
type configValue string

// UnmarshalYAML reads a scalar or a list of scalars.
func (v *configValue) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		*v = configValue(n.Value)
		return nil
	case yaml.SequenceNode:
		var list []string
		if err := n.Decode(&list); err != nil {
			return err
		}
		text, err := json.Marshal(list)
		*v = configValue(text)
		return err
	case yaml.DocumentNode, yaml.MappingNode, yaml.AliasNode:
	}
	return fmt.Errorf("line %d: the value of an option is one value or a list of values", n.Line)
}

// readConfig reads and decodes a file; what its values mean is checked later.
func readConfig(path string) (*configFile, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the operator's own file
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func parseConfig(data []byte) (*configFile, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	c := &configFile{}
	if err := decoder.Decode(c); err != nil {
		return nil, yamlError(err)
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document in the file")
	}
	if c.APIVersion != configAPIVersion || c.Kind != configKind {
		return nil, fmt.Errorf("it is apiVersion %q, kind %q; want %s, %s", c.APIVersion, c.Kind, configAPIVersion, configKind)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, yamlError(err)
	}
	for i, n := range listOf(&root, "hooks") {
		c.Hooks[i].line = n.Line
	}
	for i, n := range listOf(&root, "rules") {
		c.Rules[i].line = n.Line
	}
	return c, nil
}

// listOf returns the items of a list at the top of a document, for their lines.
func listOf(root *yaml.Node, field string) []*yaml.Node {
	if len(root.Content) == 0 {
		return nil
	}
	fields := root.Content[0].Content
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i].Value == field && fields[i+1].Kind == yaml.SequenceNode {
			return fields[i+1].Content
		}
	}
	return nil
}

var (
	yamlField = regexp.MustCompile(`field (\S+) not found in type \S+`)
	yamlType  = regexp.MustCompile(` into hookset\.\S+`)
)

// yamlError says what is wrong in one line, without the names of Go's types.
func yamlError(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the file is empty")
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		line = yamlField.ReplaceAllString(strings.TrimSpace(line), `unknown field "$1"`)
		lines = append(lines, yamlType.ReplaceAllString(line, " here"))
	}
	return errors.New(strings.Join(lines, "; "))
}
