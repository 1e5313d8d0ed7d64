// Package casetest runs cases: a folder with a cluster.yaml and a case.yaml that says which command is given and what must
// and must not be in its report.
package casetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// Case is a case.yaml.
type Case struct {
	ID     string    `json:"id"`
	Needs  []string  `json:"needs,omitempty"` // capabilities of their own that are asked: scale, placement
	Title  string    `json:"title"`
	Source string    `json:"source"`
	Why    string    `json:"why"`
	Runs   []Command `json:"runs"`
}

// Command is one command of a case and what is right about its answer.
type Command struct {
	Args  []string   `json:"args"`
	Exit  *int       `json:"exit,omitempty"`  // nil: 0 and 3 are both right
	Want  any        `json:"want,omitempty"`  // a part of the report
	Some  []Selector `json:"some,omitempty"`  // at least one value at the path matches
	Never []Selector `json:"never,omitempty"` // no value at the path matches
}

// Selector is a path into a report and a pattern for what is there.
type Selector struct {
	Path  string `json:"path"`
	Match any    `json:"match"`
}

// Load reads the case.yaml of a folder. Unknown keys are errors, and so are paths and exits that could never fail.
func Load(dir string) (*Case, error) {
	file := filepath.Join(dir, "case.yaml")
	raw, err := os.ReadFile(file) //nolint:gosec // a test names the folder
	if err != nil {
		return nil, fmt.Errorf("load case: %w", err)
	}
	c, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("load case %s: %w", file, err)
	}
	return c, nil
}

func parse(raw []byte) (*Case, error) {
	asJSON, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(asJSON))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	c := &Case{}
	if err := dec.Decode(c); err != nil {
		return nil, err
	}
	return c, c.check()
}

// check refuses what would make a run pass whatever the answer is.
func (c *Case) check() error {
	if c.ID == "" || len(c.Runs) == 0 {
		return errors.New("a case has an id and at least one run")
	}
	for i, run := range c.Runs {
		if len(run.Args) == 0 {
			return fmt.Errorf("runs[%d]: no args", i)
		}
		if run.Exit == nil && run.Want == nil && len(run.Some) == 0 && len(run.Never) == 0 {
			return fmt.Errorf("runs[%d] asserts nothing", i)
		}
		if run.silent() && (run.Want != nil || len(run.Some) > 0 || len(run.Never) > 0) {
			return fmt.Errorf("runs[%d]: exit %d leaves no report to look into", i, *run.Exit)
		}
		for _, s := range append(append([]Selector{}, run.Some...), run.Never...) {
			if _, err := parsePath(s.Path); err != nil {
				return fmt.Errorf("runs[%d]: %w", i, err)
			}
			if m, ok := s.Match.(map[string]any); !ok || len(m) == 0 {
				return fmt.Errorf("runs[%d]: path %s: match must be a map that is not empty", i, s.Path)
			}
		}
	}
	return nil
}

// silent reports whether the exit code is one that leaves no report.
func (r *Command) silent() bool { return r.Exit != nil && (*r.Exit == 1 || *r.Exit == 2) }
